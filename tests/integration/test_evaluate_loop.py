"""`canopy evaluate --loop` over the real evidence server, Milvus Lite and the real critic, on made-up questions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from canopy_backend.items import TableItem, TextItem, encode_item
from canopy_backend.sources import read_items
from canopy_client.cli.app import build
from canopy_training.loop.report import Report

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
JUDO, BRANNICK = "canopy:text:judo", "canopy:text:ada-brannick"
ROCK = "canopy:text:gannet-rock-lighthouse"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions with gold over passages and tables of the example corpus; the second needs two items."""
    read = read_items([ROOT / "examples" / "corpus"])
    items = {
        item.id: msgspec.structs.replace(item, tree=None) for item in read if isinstance(item, TextItem | TableItem)
    }
    shown = [msgspec.Raw(encode_item(item)) for item in items.values()]
    lines = [
        {"id": "q1", "question": "When was judo invented?", "answers": ["1882"], "gold": [_gold(items[JUDO], "1882")]},
        {
            "id": "q2",
            "question": "How is the stone of the only lighthouse by Ada Brannick held together?",
            "answers": ["dovetailed"],
            "gold": [_gold(items[BRANNICK], "Ada Brannick"), _gold(items[ROCK], "dovetailed")],
        },
    ]
    file = tmp_path_factory.mktemp("loop") / "made-up.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(one | {"split": "dev", "items": shown}) + b"\n" for one in lines))
    return file


def _gold(item: TextItem | TableItem, surface: str) -> dict[str, object]:
    assert isinstance(item, TextItem)
    start = item.text.index(surface)
    return {"item_id": item.id, "span": [start, start + len(surface)], "surface": surface}


def evaluate(data: Path, out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build(), ["evaluate", "--loop", "--data", str(data), "--out", str(out), *arguments])


@pytest.fixture
def servers(evidence_url: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that the command finds its servers by; the corpus is indexed once for all tests here."""
    monkeypatch.setenv("CANOPY_URL", evidence_url)
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILVUS_URI", str(data.with_name("milvus.db")))


@pytest.mark.usefixtures("servers")
def test_retrieval_is_measured_without_a_model_and_arms_are_taken_again(data: Path, tmp_path: Path) -> None:
    arguments = (
        "--no-llm",
        "--resume",
        "--arm",
        "single-*",
        "--arm",
        "hybrid-10",
        "--arm",
        "titles-10*",
        "--arm",
        "oracle-*",
    )
    done = evaluate(data, tmp_path / "out", *arguments)
    assert done.exit_code == 0, done.output
    report = Report.load(tmp_path / "out")
    (scope,) = report.scopes
    figures = {arm: {name: one.value for name, one in own.items()} for arm, own in scope.metrics.items()}
    assert (scope.name, scope.questions, report.setting.model) == ("made-up", 2, "")
    assert figures["oracle-10"]["items_3"] == 1
    for k in ("5", "10", "20", "30"):
        whole, compressed = figures[f"single-{k}-whole"], figures[f"single-{k}"]
        assert whole["items_3"] == compressed["items_3"]
        assert whole["fragments_3"] == whole["items_3"]
        assert compressed["tokens_3"] < whole["tokens_3"]
        assert (whole["kept"], compressed["rounds"]) == (1, 1)
    assert figures["single-5"]["items_3"] <= figures["single-30"]["items_3"]
    assert all(own["exact"] is None and own["calls"] == 0 for own in figures.values())
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"loop.json", "loop.md", "loop.png"}
    assert "# The loop on annotated questions" in done.stdout
    again = evaluate(data, tmp_path / "again", *arguments, "--json")
    assert again.exit_code == 0, again.output
    repeated = msgspec.json.decode(again.stdout, type=Report)
    assert (repeated.scopes, repeated.arms) == (report.scopes, report.arms)


@pytest.mark.critic
@pytest.mark.usefixtures("servers")
def test_the_real_model_judges_and_reads(
    data: Path, tmp_path: Path, critic_url: str, shared_settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANOPY_CRITIC_URL", critic_url)
    monkeypatch.setenv("CANOPY_MODEL_FOLDER", str(shared_settings.critic_model))
    monkeypatch.setenv("CANOPY_BUDGET_TOKENS", "600")
    done = evaluate(data, tmp_path / "out", "--arm", "critic-5", "--arm", "single-10", "--in-flight", "2")
    assert done.exit_code == 0, done.output
    report = Report.load(tmp_path / "out")
    (scope,) = report.scopes
    single, loop = scope.metrics["single-10"], scope.metrics["critic-5"]
    assert report.setting.model
    assert single["calls_reader"].value == 1
    assert single["f1"].value is not None
    assert loop["f1"].value is None
    # A small model may judge wrongly, and be asked twice; it is asked, and the reader is not.
    assert (loop["calls_critic"].value or 0) >= 1
    assert loop["calls_reader"].value == 0
    for one in (single, loop):
        assert 0 < (one["tokens_3"].value or 0) <= 600
        assert 0 <= (one["seconds_overhead"].value or 0) < (one["seconds_total"].value or 0)
