"""Where the deployment's files are, and what is read off them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "kubernetes" / "canopy"

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make deploy-check")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(CHART / "files" / "rules.yaml")["groups"] for rule in group["rules"]]


def alerts() -> list[str]:
    return [rule["alert"] for rule in rules() if "alert" in rule]


def pins(name: str) -> dict[str, str]:
    """Pinned version by package of a requirements file or a lock."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").lower()
    return dict(re.findall(r"^([a-z0-9_-]+)==(\S+)", text, re.M))
