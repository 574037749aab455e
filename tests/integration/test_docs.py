"""What the documentation shows is run: every Python block, every `canopy` and `make` command of the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
#: A node's score in a printed tree.
SCORE = re.compile(r"[+-]\d\.\d{3}\b")
CANOPY = Path(sys.executable).with_name("canopy")


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        for number, (kind, body) in enumerate(FENCE.findall(page.read_text(encoding="utf-8"))):
            if kind == language:
                found.append(pytest.param(body, id=f"{page.name}-{number}"))
    assert found
    return found


def commands(prefix: str) -> list[tuple[str, list[str]]]:
    """Commands of the README's console blocks that start with ``prefix``, in order, with the lines shown below each."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for kind, body in FENCE.findall(text):
        for line in body.splitlines() if kind == "console" else []:
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line.rstrip())
    return [(command, shown) for command, shown in found if command.startswith(prefix)]


@pytest.mark.docs
@pytest.mark.server
@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, evidence_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace("localhost:8001", evidence_url)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"


@pytest.mark.docs
def test_make_commands_of_the_readme_exist() -> None:
    shown = {command.split()[1] for command, _ in commands("make ")}
    assert {"demo", "test"} <= shown
    known = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for target in shown:
        assert re.search(rf"make {target}\b", known), f"make {target} is not in make help"


def scores_of(line: str) -> list[float]:
    """The scores of a line of a tree."""
    return [float(score) for score in SCORE.findall(line)]


@pytest.mark.docs
@pytest.mark.server
@pytest.mark.critic
def test_canopy_commands_of_the_readme_run(stack_environment: dict[str, str], tmp_path: Path) -> None:
    """In order, against the stack that the tests started: so not `up` and `down`, which the stack's own tests run."""
    environment = {**os.environ, **stack_environment, "MILVUS_URI": str(tmp_path / "readme.db"), "COLUMNS": "100"}
    ran = []
    for line, shown in commands("canopy "):
        words = shlex.split(line)
        if words[1] in ("up", "down", "status"):
            continue
        done = subprocess.run(
            [str(CANOPY), *words[1:]], capture_output=True, text=True, timeout=600, cwd=ROOT, env=environment,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        printed = [(SCORE.sub("", one.rstrip()), scores_of(one)) for one in done.stdout.splitlines()]
        for one in shown:
            # A processor without bfloat16 computes in float32, so the last digit of a score is its own.
            alike = [scores for words, scores in printed if words == SCORE.sub("", one)]
            assert any(scores == pytest.approx(scores_of(one), abs=5e-3) for scores in alike), f"{line}: {one!r}"
        ran.append(words[1])
    assert ran == ["index", "ask", "compress", "compress"]


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
