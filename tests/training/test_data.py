"""Data files: both layouts, and every way in which a line can be wrong, named by file, line and field."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.errors import InvalidData, TrainingError
from canopy_training.data import read_questions

TEXT = {"id": "t", "modality": "text", "title": "Dam", "text": "Hale drew the dam. She left in 1930."}
TABLE = {"id": "r", "modality": "table", "columns": ["Year", "Cup"], "rows": [["1930", "gold"], ["1931", "none"]]}
VIDEO = {"id": "v", "modality": "video", "duration_s": 90, "segments": []}
LINE: dict[str, Any] = {
    "id": "q1",
    "question": "When did Hale leave?",
    "answers": ["1930"],
    "split": "train",
    "items": [TEXT, TABLE, VIDEO],
    "gold": [{"item_id": "t", "span": [19, 36], "surface": "She left in 1930."}],
}


def write(folder: Path, *lines: Any, name: str = "own.jsonl") -> Path:
    file = folder / name
    payload = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    file.write_bytes(gzip.compress(payload.encode()) if name.endswith(".gz") else payload.encode())
    return file


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_items_in_the_line(tmp_path: Path, name: str) -> None:
    (question,) = read_questions([write(tmp_path, LINE, "", name=name)])
    assert (question.dataset, question.split, question.answers) == ("own", "train", ("1930",))
    assert [item.id for item in question.items] == ["t", "r", "v"]
    assert question.gold[0].span == (19, 36)


def test_items_beside_the_questions_are_shared_objects(tmp_path: Path) -> None:
    line = {**LINE, "item_ids": ["r", "t"], "items": []}
    write(tmp_path, TEXT, TABLE, name="set.items.jsonl.gz")
    first, second = read_questions([write(tmp_path, line, {**line, "id": "q2"}, name="set.questions.jsonl.gz")])
    assert first.dataset == "set"
    assert [item.id for item in first.items] == ["r", "t"]
    assert first.items[0] is second.items[0]


def test_only_the_split_that_was_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path, LINE, {**LINE, "id": "q2", "split": "dev"})
    assert [question.id for question in read_questions([file], "dev")] == ["q2"]
    with pytest.raises(TrainingError, match=r"no question of split 'test' \(found: \['dev', 'train'\]\)"):
        read_questions([file], "test")


BAD = {
    "span outside": ({"gold": [{"item_id": "t", "span": [19, 99]}]}, "gold[0].span", "outside the 36 characters"),
    "span reversed": ({"gold": [{"item_id": "t", "span": [9, 9]}]}, "gold[0].span", "outside"),
    "span not the surface": (
        {"gold": [{"item_id": "t", "span": [0, 4], "surface": "Dale"}]},
        "gold[0].surface",
        "Hale",
    ),
    "span of a table": ({"gold": [{"item_id": "r", "span": [0, 4]}]}, "gold[0].span", "modality 'table'"),
    "row out of range": ({"gold": [{"item_id": "r", "rows": [0, 2]}]}, "gold[0].rows", "2 is outside the 2 rows"),
    "row negative": ({"gold": [{"item_id": "r", "rows": [-1]}]}, "gold[0].rows", "-1 is outside"),
    "no rows": ({"gold": [{"item_id": "r", "rows": []}]}, "gold[0].rows", "length"),
    "time after the end": ({"gold": [{"item_id": "v", "time": [90, 95]}]}, "gold[0].time", "not inside the 90"),
    "time reversed": ({"gold": [{"item_id": "v", "time": [9, 3]}]}, "gold[0].time", "not inside"),
    "two places": ({"gold": [{"item_id": "t", "span": [0, 4], "answer": "x"}]}, "gold[0].answer", "span and answer"),
    "unknown item": ({"gold": [{"item_id": "z", "span": [0, 4]}]}, "gold[0].item_id", "'z' is none"),
    "nothing to learn": ({"gold": [], "answers": [" "]}, "gold", "neither gold nor answers"),
    "no items": ({"items": []}, "items", "needs items"),
    "one id twice": ({"items": [TEXT, TEXT]}, "items", "one id"),
    "item broken": ({"items": [TEXT, {**TABLE, "rows": 3}]}, "items[1].rows", "array"),
    "no question": ({"question": ""}, "question", "length"),
    "wrong type": ({"gold": [{"item_id": "t", "span": ["a", 4]}]}, "gold[0].span[0]", "int"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_line_is_named_by_file_line_and_field(tmp_path: Path, name: str) -> None:
    change, field, reason = BAD[name]
    file = write(tmp_path, LINE, {**LINE, "id": "q2", **change})
    with pytest.raises(InvalidData) as caught:
        read_questions([file])
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(file), 2, field)
    assert reason in str(caught.value)


def test_repeated_ids_and_lines_that_are_no_json(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"line 2, field 'id': repeats the id of line 1"):
        read_questions([write(tmp_path, LINE, LINE)])
    with pytest.raises(InvalidData, match="line 1: "):
        read_questions([write(tmp_path, "{")])
    with pytest.raises(InvalidData, match="line 1"):
        read_questions([write(tmp_path, "[" * 100_000)])


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no question"):
        read_questions([write(tmp_path, "")])
    with pytest.raises(TrainingError, match="no file: no question"):
        read_questions([])
    with pytest.raises(TrainingError, match=r"absent\.jsonl: cannot be read"):
        read_questions([tmp_path / "absent.jsonl"])
    with pytest.raises(TrainingError, match="end in"):
        read_questions([write(tmp_path, LINE, name="own.csv")])
    with pytest.raises(TrainingError, match=r"set\.items\.jsonl, which is not there"):
        read_questions([write(tmp_path, LINE, name="set.questions.jsonl")])
    whole = gzip.compress(json.dumps(LINE).encode())
    for name, payload in (
        ("cut.jsonl.gz", whole[:-20]),
        ("plain.jsonl.gz", b"{}"),
        ("bits.jsonl.gz", whole[:12] + b"\x9c" * 40),
    ):
        (tmp_path / name).write_bytes(payload)
        with pytest.raises(TrainingError, match=name):
            read_questions([tmp_path / name])
    write(tmp_path, TEXT, name="set.items.jsonl")
    with pytest.raises(InvalidData, match=r"field 'item_ids\[0\]': no item 'q'"):
        read_questions([write(tmp_path, {**LINE, "items": [], "item_ids": ["q"]}, name="set.questions.jsonl")])


@given(payload=st.binary(max_size=300))
def test_no_bytes_bring_anything_but_our_own_error(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    file.write_bytes(payload)
    with contextlib.suppress(TrainingError):
        read_questions([file])
