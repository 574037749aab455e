"""`canopy evaluate --loop`: what it refuses before it asks a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_toys import TEXT
from typer.testing import CliRunner, Result

from canopy_client.cli.app import build

ITEM = {"id": "a", "modality": "text", "title": "A", "text": TEXT}
LINE = {"id": "q", "split": "dev", "question": "What?", "items": [ITEM], "gold": [{"item_id": "a", "span": [0, 3]}]}


def evaluate(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["evaluate", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--loop", "--adapter", "x"], "--adapter does not apply to --loop, which asks the running servers"),
        (["--loop", "--endpoint", "localhost:1"], "--endpoint does not apply to --loop"),
        (["--loop", "--no-frozen"], "--frozen does not apply to --loop"),
        (["--arm", "single-*"], "--arm applies to --loop only"),
        (["--no-llm"], "--llm applies to --loop only"),
        (["--resume"], "--resume applies to --loop only"),
        (["--loop", "--arm", "x-*"], "--arm 'x-*' fits none of single-10,"),
        (["--loop", "--split", "test"], "no question of split 'test' (found: ['dev'])"),
        (["--loop", "--pool", "other.jsonl"], "its item 'a' is another one than an earlier item"),
        (["--loop", "--no-llm"], "no server answers at localhost:9"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CANOPY_URL", "localhost:9")
    monkeypatch.setenv("CANOPY_DEADLINE_S", "0.5")
    # Variables that both evaluations may find set are no reason to refuse.
    monkeypatch.setenv("CANOPY_MODEL", "elsewhere")
    Path("data.jsonl").write_text(json.dumps(LINE), encoding="utf-8")
    other = LINE | {"items": [ITEM | {"text": "Another text."}]}
    Path("other.jsonl").write_text(json.dumps(other), encoding="utf-8")
    done = evaluate("--data", "data.jsonl", "--out", "out", *arguments)
    assert done.exit_code == 1
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not Path("out").exists()
