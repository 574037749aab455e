"""`canopy evaluate`: a model in this process and a running server give one set of figures; faults are told by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from canopy_backend.items import TextItem, encode_item
from canopy_backend.sources import read_items
from canopy_client.cli.app import build
from canopy_export.example import adapter_for, example_model
from canopy_training.data import read_questions
from canopy_training.evaluation.endpoint import EndpointSource
from canopy_training.evaluation.local import LocalSource, Setup, settle
from canopy_training.evaluation.report import Report
from canopy_training.evaluation.run import run_evaluation
from canopy_training.evaluation.scoring import locate_all, score_questions

ROOT = Path(__file__).resolve().parents[2]
TOO_LONG = "why " * 400


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three questions on items of the example corpus; one question and one item are larger than a server takes."""
    items = [item for item in read_items([ROOT / "examples" / "corpus"]) if isinstance(item, TextItem)][:3]
    items = [msgspec.structs.replace(item, tree=None) for item in items]
    huge = TextItem(id="huge", text="So it is. " * 4200)
    gold = {"item_id": items[0].id, "kind": "answer", "span": [0, 20]}
    lines = [
        _line("q1", "Where does it begin?", [*items, huge], [gold]),
        _line("q2", "What is told of it?", items[:2], [gold]),
        _line("q3", TOO_LONG, items[:1], [gold]),
    ]
    file = tmp_path_factory.mktemp("data") / "few.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


def _line(name: str, question: str, items: Sequence[TextItem], gold: list[dict[str, object]]) -> bytes:
    shown = [msgspec.Raw(encode_item(item)) for item in items]
    return msgspec.json.encode({"id": name, "split": "dev", "question": question, "items": shown, "gold": gold})


def _command(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["evaluate", *arguments])


@pytest.mark.server
def test_a_server_gives_the_scores_of_the_model_that_it_serves(data: Path, stack, evidence_url: str) -> None:
    settings = stack.settings
    base, reader = example_model(), settings.critic_model / "tokenizer.json"
    adapter = adapter_for(settings.model, settings.adapter, settings.node_encoding)
    encoding, branching = settle(base, adapter, settings.node_encoding, None)
    local = LocalSource(Setup(base, reader, adapter, encoding, branching, name="local"))
    remote = EndpointSource(evidence_url)
    questions = read_questions([data], "dev")
    located, _ = locate_all(questions)
    (here, there) = (score_questions(source, questions, located) for source in (local, remote))
    assert [question.id for question in here] == [question.id for question in there] == ["q1", "q2"]
    assert [item.item_id for item in here[0].items[:3]] == [item.item_id for item in there[0].items]
    for mine, served in zip(here[0].items, there[0].items, strict=False):
        assert np.abs(mine.scores - served.scores).max() < 2e-3
        assert mine.tokens.tolist() == served.tokens.tolist()
    assert list(remote.omissions.items) == ["huge"]
    assert "max_fragments=4096" in remote.omissions.items["huge"]
    assert list(remote.omissions.queries) == list(local.omissions.queries) == [TOO_LONG]
    assert "over the window of 256" in local.omissions.queries[TOO_LONG]
    report = run_evaluation(questions, [local, remote], resamples=20)
    assert (report.questions, report.items) == (2, 5)
    assert [system.card.name for system in report.systems] == ["local", "endpoint"]


@pytest.mark.parametrize("encoding", ["separate", "contextual"])
def test_the_command_writes_report_page_and_figures(data: Path, tmp_path: Path, encoding: str) -> None:
    lines = data.read_bytes().splitlines()
    small = tmp_path / "small.jsonl"
    small.write_bytes(lines[1] + b"\n")
    reader = str(example_model() / "tokenizer.json")
    arguments = ["--data", str(small), "--out", str(tmp_path / "out"), "--node-encoding", encoding]
    done = _command(*arguments, "--reader-tokenizer", reader)
    assert done.exit_code == 0, done.output
    assert "right decisions" in done.stdout
    report = Report.load(tmp_path / "out")
    assert report.systems[0].card.node_encoding == encoding
    assert (tmp_path / "out" / "evaluation.md").read_text(encoding="utf-8").startswith("# Evaluation")
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".json", ".md", ".png"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--data", "none.jsonl"], "none.jsonl: cannot be read"),
        (["--data", "bad.jsonl"], "bad.jsonl, line 1, field 'question'"),
        (["--data", "good.jsonl", "--node-encoding", "other"], "expected separate or contextual"),
        (["--data", "good.jsonl", "--split", "test"], "no question of split 'test' (found: ['dev'])"),
        (["--data", "good.jsonl", "--adapter", "x", "--endpoint", "localhost:1"], "give --adapter or --endpoint"),
        (["--data", "good.jsonl", "--adapter", "nowhere"], "nowhere: no adapter here"),
        (["--data", "good.jsonl", "--base", "nowhere"], "nowhere/config.json: not found"),
        (["--data", "good.jsonl", "--reader-tokenizer", "none.json"], "tokenizer 'none.json': no such file"),
    ],
)
def test_bad_input_is_one_line_with_its_place(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_bytes(data.read_bytes())
    (tmp_path / "bad.jsonl").write_bytes(b'{"id": "q", "question": 3}\n')
    done = _command(*arguments, "--out", "out")
    assert done.exit_code == 1
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
