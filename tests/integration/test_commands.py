"""The README's first commands, as a user runs them: the demo from start to end, then up, status and down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings

pytestmark = [pytest.mark.docs, pytest.mark.server, pytest.mark.critic]

ROOT = Path(__file__).resolve().parents[2]
CANOPY = Path(sys.executable).with_name("canopy")


@pytest.fixture(scope="module")
def settings(shared_settings: StackSettings, tmp_path_factory: pytest.TempPathFactory) -> StackSettings:
    return isolated(shared_settings, tmp_path_factory.mktemp("commands") / "home")


@pytest.fixture(scope="module")
def environment(settings: StackSettings) -> dict[str, str]:
    ports = {f"CANOPY_{name.upper()}": str(getattr(settings, name)) for name in StackSettings.__struct_fields__
             if name.endswith("_port")}  # fmt: skip
    return {**os.environ, **ports, "CANOPY_HOME": str(settings.home), "COLUMNS": "100"}


def run(environment: dict[str, str], *arguments: str, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CANOPY), *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_make_demo_is_canopy_demo() -> None:
    recipe = subprocess.run(
        ["make", "-n", "--no-print-directory", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert recipe.strip().endswith(".venv/bin/canopy demo")


def test_the_demo_shows_every_step_and_leaves_the_stack_down(
    environment: dict[str, str], settings: StackSettings
) -> None:
    done = run(environment, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    questions = json.loads((ROOT / "examples/corpus/demo.json").read_text(encoding="utf-8"))
    assert len(questions) == 3
    shown = " ".join(done.stdout.split())
    for word in ("round 1", "score", "✔ kept", "✘ dropped", "split", "reader tokens", "critic:", "answer", "expected"):
        assert word in shown, word
    (trace,) = (settings.home / "traces").glob("*.json")
    answers = json.loads(trace.read_bytes())["answers"]
    assert [answer["question"] for answer in answers] == [question["question"] for question in questions]
    for answer, question in zip(answers, questions, strict=True):
        assert answer["text"].strip()
        retrieved = {hit["item_id"] for round_ in answer["rounds"] for hit in round_["hits"]}
        assert question["gold"][0]["item_id"] in retrieved
        assert 0 < answer["tokens_after"] <= answer["tokens_before"]
    assert not listens(settings.grpc_port)
    assert not listens(settings.critic_grpc_port)


def test_up_status_down(environment: dict[str, str], settings: StackSettings) -> None:
    assert run(environment, "status", "--json").returncode == 1
    try:
        up = run(environment, "up", "--json")
        assert up.returncode == 0, up.stderr
        assert json.loads(up.stdout)["up"] is True
        status = json.loads(run(environment, "status", "--json").stdout)
        assert {server["name"]: server["canary"]["passed"] for server in status["servers"]} == {
            "evidence": True,
            "critic": True,
        }
        # Without a word about endpoints the client finds the stack where its ports were moved to.
        asked = run(
            environment, "compress", "--query", "When was judo invented?", "examples/corpus/passages.jsonl", "--json"
        )
        assert asked.returncode == 0, asked.stderr
        assert any("1882" in one["text"] for one in json.loads(asked.stdout) if one["item_id"] == "canopy:text:judo")
    finally:
        down = run(environment, "down", "--json")
    assert down.returncode == 0, down.stderr
    assert not listens(settings.grpc_port)
    assert not listens(settings.critic_grpc_port)
