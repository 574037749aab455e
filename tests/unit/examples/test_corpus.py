"""The example corpus keeps what it promises: every item decodes, every question's gold evidence is there."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from canopy_backend.fragments import fragment
from canopy_backend.items import Item, TableItem, TextItem, VideoItem, decode_item, decode_items, encode_item
from canopy_backend.limits import Limits
from canopy_backend.sources import read_items

ROOT = Path(__file__).resolve().parents[3]
CORPUS = Path("examples/corpus")


def read_questions() -> list[dict[str, Any]]:
    lines = (ROOT / CORPUS.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


QUESTIONS = read_questions()


@pytest.fixture(scope="module")
def items() -> dict[str, Item]:
    """The corpus as ``canopy index examples/corpus`` reads it from the project root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        found = list(read_items([CORPUS]))
    repeated = [item_id for item_id, times in Counter(item.id for item in found).items() if times > 1]
    assert repeated == []
    return {item.id: item for item in found}


def squeeze(text: str) -> str:
    return " ".join(text.split())


def gold_text(item: Item, gold: dict[str, Any]) -> str:
    """What one gold entry points at, as one line."""
    if isinstance(item, TextItem):
        start, end = gold["span"]
        return squeeze(item.text[start:end])
    if isinstance(item, TableItem):
        rows = item.rows if gold.get("whole") else [item.rows[index] for index in gold["rows"]]
        return squeeze(" | ".join(cell for row in rows for cell in row))
    if isinstance(item, VideoItem):
        start, end = gold["time"]
        return squeeze(" ".join(cue.text for cue in item.segments if cue.start < end and cue.end > start))
    assert gold["whole"] is True
    return squeeze(item.caption)


def plain(text: str) -> str:
    """For comparing answers with cells: no thousands separators, no case."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", text).casefold()


def test_counts(items: dict[str, Item]) -> None:
    kinds = Counter(type(item).__name__ for item in items.values())
    assert kinds["TextItem"] >= 34
    assert kinds["TableItem"] >= 12
    assert kinds["VideoItem"] >= 10
    assert kinds["ImageItem"] >= 6
    assert kinds.total() >= 60


def test_items_survive_the_wire(items: dict[str, Item]) -> None:
    assert all(decode_item(encode_item(item)) == item for item in items.values())


@pytest.mark.parametrize("name", ["passages.jsonl", "tables.jsonl"])
def test_lines_are_items_as_sent(name: str) -> None:
    lines = (ROOT / CORPUS / name).read_bytes().splitlines()
    assert len(decode_items(lines, Limits())) == len(lines)


def test_sizes(items: dict[str, Item]) -> None:
    for item in items.values():
        assert item.title, item.id
        if isinstance(item, TextItem):
            assert 4 <= len(fragment(item)) <= 12, item.id
        elif isinstance(item, TableItem):
            assert 5 <= len(item.rows) <= 60, item.id
        elif isinstance(item, VideoItem):
            assert 110 <= item.duration_s <= 600, item.id
            assert all(3 <= round(cue.end - cue.start, 3) <= 6 for cue in item.segments), item.id
    total = sum(path.stat().st_size for path in (ROOT / CORPUS).rglob("*") if path.is_file())
    assert total < 600_000


def test_variety(items: dict[str, Item]) -> None:
    texts = "\n".join(item.text for item in items.values() if isinstance(item, TextItem))
    assert re.search(r"[\u3040-\u30ff]", texts), "no Japanese"
    assert re.search(r"[\u0900-\u097f]", texts), "no Hindi"
    assert "écluses" in texts, "no French"
    assert "```" in texts, "no code fence"
    assert re.search(r"^\d\. ", texts, re.MULTILINE), "no numbered list"
    assert any(isinstance(item, TableItem) and item.header_rows for item in items.values())


def test_questions_are_as_many_as_promised() -> None:
    assert len(QUESTIONS) == 24
    assert len({question["id"] for question in QUESTIONS}) == 24
    kinds = Counter(question["kind"] for question in QUESTIONS)
    assert kinds == {"lookup": 8, "video": 2, "image": 2, "two_hop": 8, "aggregate": 4}
    for question in QUESTIONS:
        assert question["answers"]
        assert len(question["gold"]) == (2 if question["kind"] == "two_hop" else 1)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
def test_gold_supports_the_answer(items: dict[str, Item], question: dict[str, Any]) -> None:
    found = [gold_text(items[gold["item_id"]], gold) for gold in question["gold"]]
    for gold, text in zip(question["gold"], found, strict=True):
        assert squeeze(gold["support"]) in text
    if question["kind"] != "aggregate" or question["id"] == "race-most-wins":
        assert any(plain(answer) in plain(found[-1]) for answer in question["answers"])
    if question["kind"] == "two_hop":
        first, second = question["gold"]
        bridge = {"brannick-height": "Gannet Rock", "polder-flow": "Heron 40", "bakery-rest": "Ines Calloway"}
        bridge |= {"race-club": "Oskel Rowing Guild", "sextant-village": "Tomas Reyl", "stour-lens": "Fresnel lens"}
        bridge |= {"bridge-station": "Tannery Quay", "meteor-advice": "Noor Castellane"}
        name = bridge[question["id"]]
        assert first["item_id"] != second["item_id"]
        assert name in found[0]
        target = items[second["item_id"]]
        assert name.casefold() in f"{target.title} {found[1]}".casefold()
        assert name not in question["question"]
        assert not any(plain(answer) in plain(found[0]) for answer in question["answers"])


def test_text_gold_is_whole_sentences(items: dict[str, Item]) -> None:
    for question in QUESTIONS:
        for gold in question["gold"]:
            item = items[gold["item_id"]]
            if isinstance(item, TextItem):
                start, end = gold["span"]
                spans = fragment(item).spans.tolist()
                touched = [span for span in spans if span[0] < end and span[1] > start]
                whole = item.text[touched[0][0] : touched[-1][1]]
                assert whole.strip() == item.text[start:end], question["id"]


def test_aggregates_follow_from_the_tables(items: dict[str, Item]) -> None:
    answers = {question["id"]: question["answers"] for question in QUESTIONS if question["kind"] == "aggregate"}
    tables = {
        question["id"]: items[question["gold"][0]["item_id"]]
        for question in QUESTIONS
        if question["kind"] == "aggregate"
    }

    def column(question: str, name: str) -> list[str]:
        table = tables[question]
        assert isinstance(table, TableItem)
        return [row[table.columns.index(name)] for row in table.rows]

    (most, wins), (_, second) = Counter(column("race-most-wins", "Winner")).most_common(2)
    assert most in answers["race-most-wins"]
    assert wins > second
    assert (
        str(sum(int(year) > 1900 for year in column("stations-after-1900", "Opened"))) in answers["stations-after-1900"]
    )
    assert str(column("elements-1898", "Year").count("1898")) in answers["elements-1898"]
    summer = dict(zip(column("summer-rain", "Month"), column("summer-rain", "Rain (mm)"), strict=True))
    total = sum(float(summer[month]) for month in ("June", "July", "August"))
    assert f"{total:.1f}" in answers["summer-rain"]


def test_demo_asks_three_of_the_questions(items: dict[str, Item]) -> None:
    demo = json.loads((ROOT / CORPUS / "demo.json").read_text(encoding="utf-8"))
    assert len(demo) == 3
    assert all(question in QUESTIONS for question in demo)
    assert any(question["kind"] == "two_hop" for question in demo)
    reached = {type(items[gold["item_id"]]).__name__ for question in demo for gold in question["gold"]}
    assert {"TextItem", "TableItem", "VideoItem"} <= reached


def test_images_are_what_the_script_draws(tmp_path: Path) -> None:
    script = ROOT / CORPUS / "draw_images.py"
    spec = importlib.util.spec_from_file_location("draw_images", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for drawn in module.draw_all(tmp_path):
        kept = ROOT / CORPUS / "images" / drawn.name
        assert pixels(drawn) == pixels(kept), drawn.name
        assert kept.with_suffix(".caption.txt").read_text(encoding="utf-8").strip()


def pixels(path: Path) -> tuple[int, int, bytes]:
    """Width, height and filtered scan lines of a PNG; compressors may differ, these may not."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, body, width, height = 8, b"", 0, 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + content) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", content[:8])
        elif kind == b"IDAT":
            body += content
        at += 12 + size
    return width, height, zlib.decompress(body)
