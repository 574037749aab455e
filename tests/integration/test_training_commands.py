"""The page on fine-tuning is run: its data, its commands in order, and what they leave; and bad input is named."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from canopy_backend.manifest import AdapterCard, EncoderManifest
from canopy_client.cli.app import build
from canopy_export.example import EXAMPLE_NAME, example_adapter, example_model
from canopy_training.blend import Blend
from canopy_training.evaluation.report import Report
from canopy_training.manifest import RunManifest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
DATA = next(body for kind, body in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S) if kind == "jsonl")
#: What the page runs on a stack or on question sets has tests of its own.
ELSEWHERE = ("up", "evaluate --loop", "train-critic")
EVERY = re.findall(r"^\$ canopy (.*)$", PAGE, re.M)
COMMANDS = [command for command in EVERY if not command.startswith(ELSEWHERE)]


def run(*words: str) -> Result:
    return CliRunner().invoke(build(), list(words))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "evidence.jsonl").write_text(DATA, encoding="utf-8")
    (tmp_path / "tokenizer.json").write_bytes((example_model() / "tokenizer.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.docs
def test_the_page_s_commands_run_on_the_page_s_data(folder: Path) -> None:
    assert [command.split()[0] for command in COMMANDS] == ["train", "blend", "evaluate", "export"]
    assert len(EVERY) == len(COMMANDS) + len(ELSEWHERE)
    for command in COMMANDS:
        done = run(*shlex.split(command))
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception}"

    manifest = RunManifest.load(folder / "adapter")
    assert (manifest.counted.items, manifest.counted.instances, manifest.settings.epochs) == (2, 4, 2)
    assert manifest.history[-1]["step"] == manifest.steps
    card = AdapterCard.load(folder / "adapter")
    assert (card.base, card.node_encoding) == (EXAMPLE_NAME, "contextual")
    assert "contextual node encoding" in (folder / "adapter" / "README.md").read_text(encoding="utf-8")
    assert not (folder / "adapter" / "state.pt").exists()

    milder = Blend.load(folder / "milder")
    assert [(part.weight, part.run) for part in milder.parts] == [(0.75, manifest)]
    assert AdapterCard.load(folder / "milder") == card

    report = Report.load(folder / "results")
    assert [system.card.name for system in report.systems] == ["frozen", "tuned"]
    assert report.questions == 1
    assert list((folder / "results").glob("*.png"))

    served = EncoderManifest.load(folder / "repository" / "node_encoder")
    assert served.node_encoding == "contextual"
    assert served.adapter

    again = run(*shlex.split(COMMANDS[0]))
    assert again.exit_code == 0
    assert "holds this run already" in again.output


def test_two_processes_share_a_run(folder: Path) -> None:
    lines = [msgspec.json.decode(line) for line in DATA.splitlines()]
    copies = [{**line, "id": f"{line['id']}-{copy}"} for copy in range(8) for line in lines]
    (folder / "more.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, copies)) + b"\n")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["train", "--data", "more.jsonl", "--out", "two", "--epochs", "1", "--step-tokens", "256"]
    done = subprocess.run(
        [*launch, str(Path(sys.executable).with_name("canopy")), *train], capture_output=True, text=True, timeout=300,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = RunManifest.load(folder / "two")
    assert manifest.processes == 2
    assert manifest.counted.items == 16
    assert manifest.steps >= 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["--data", "evidence.jsonl", "--split", "test"], "no question of split 'test'"),
        (["--data", "evidence.jsonl", "--rank", "0"], "--rank: "),
        (["--data", "evidence.jsonl", "--node-encoding", "both"], "--node-encoding: "),
        (["--data", "evidence.jsonl", "--base", "."], "config.json"),
    ],
)
def test_bad_input_is_named_before_anything_starts(folder: Path, words: list[str], message: str) -> None:
    done = run("train", "--out", "adapter", *words)
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"
    assert not (folder / "adapter" / "state.pt").exists()


def test_an_adapter_of_another_encoding_or_base_is_refused(folder: Path) -> None:
    words = ["evaluate", "--data", "evidence.jsonl", "--out", "results"]
    done = run(*words, "--adapter", str(example_adapter("contextual")), "--node-encoding", "separate")
    assert done.exit_code != 0
    assert "trained for node_encoding 'contextual', not 'separate'" in f"{done.output} {done.exception}"
    other = folder / "other"
    other.mkdir()
    for file in example_adapter("contextual").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    card = AdapterCard.load(other)
    msgspec.structs.replace(card, base_revision="0" * 64).save(other)
    done = run(
        "train", "--data", "evidence.jsonl", "--out", "new", "--start", str(other), "--node-encoding", "contextual"
    )
    assert done.exit_code != 0
    assert "base" in f"{done.output} {done.exception}"
    assert not (folder / "new").exists()
    done = run(*words, "--adapter", str(other))
    assert done.exit_code != 0
    assert "base" in f"{done.output} {done.exception}"
