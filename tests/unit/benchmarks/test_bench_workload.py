"""The workload: the same in every run, and of the sizes that it says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import workload
from benchmarks.rivals import node_texts
from benchmarks.server import refresh
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import decode_item


def test_questions_have_ten_items_with_their_gold_among_them() -> None:
    work = workload.build(None, questions=100, items=500)
    assert work.questions
    for question in work.questions:
        names = [item.id for item in question.items]
        assert len(names) == len(set(names)) == workload.PASSAGES
        assert {gold.item_id for gold in question.gold} <= set(names)
        assert set(names) <= {item.id for item in work.items}


def test_two_runs_get_the_same() -> None:
    assert workload.build(None, questions=5, items=30) == workload.build(None, questions=5, items=30)


def test_question_sets_are_taken_in_turn_and_left_out_by_name(tmp_path: Path) -> None:
    for name in ("one", "two", "qmsum"):
        items = [
            {"id": f"{name}-{place}", "modality": "text", "title": "T", "text": f"{name} {place}."}
            for place in range(12)
        ]
        questions = [
            {"id": f"q{place}", "split": "dev", "dataset": name, "question": "What?", "item_ids": [f"{name}-{place}"],
             "gold": [{"item_id": f"{name}-{place}", "span": [0, 3]}]}
            for place in range(3)
        ]  # fmt: skip
        for kind, lines in (("items", items), ("questions", questions)):
            with gzip.open(tmp_path / f"{name}.{kind}.jsonl.gz", "wb") as file:
                file.write(b"\n".join(map(msgspec.json.encode, lines)))
    work = workload.build(tmp_path, questions=6, items=60)
    assert [question.dataset for question in work.questions] == ["examples", "one", "two"] * 2
    assert len(work.items) <= 60


@pytest.mark.parametrize("sentences", [1, 8, 64])
def test_sized_items_have_that_many_fragments(sentences: int) -> None:
    items = workload.sized(3, sentences)
    assert [len(fragment(item)) for item in items] == [sentences] * 3
    assert len({msgspec.json.encode(item) for item in items}) == 3


def test_a_node_text_for_every_node() -> None:
    (item,) = workload.sized(1, 8)
    texts = node_texts([item])
    assert len(texts) == balanced(8).size
    assert texts[0].endswith(texts[-1].split("\n")[-1])


def test_input_files_hold_the_wire_form(tmp_path: Path) -> None:
    items = workload.passages(2)
    workload.write_compress_input(tmp_path / "in.json", "Why?", items)
    (entry,) = json.loads((tmp_path / "in.json").read_text())["data"]
    assert entry["QUERY"] == {"content": ["Why?"], "shape": [1]}
    assert entry["ITEMS"]["shape"] == [2]
    assert [decode_item(text.encode()) for text in entry["ITEMS"]["content"]] == items


def test_a_refreshed_repository_keeps_what_was_exported_and_drops_what_is_gone(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    for name in ("a/1/model.py", "a/config.pbtxt", "a/manifest.json"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("source")
    (copy / "a" / "1").mkdir(parents=True)
    for name in ("a/manifest.json", "a/1/model.onnx", "a/1/old.py"):
        (copy / name).write_text("copy")
    refresh(source, copy)
    assert (copy / "a/1/model.py").read_text() == "source"
    assert (copy / "a/manifest.json").read_text() == "copy"
    assert (copy / "a/1/model.onnx").read_text() == "copy"
    assert not (copy / "a/1/old.py").exists()
