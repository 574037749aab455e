"""What a trace holds for the page, and what is said of a file that is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from canopy_backend.errors import InvalidRequest
from canopy_backend.items import Item, TextItem
from canopy_client import schema, trace
from canopy_client.view.check import check
from tests.unit.client import view_data as data

SCHEMAS = Path(__file__).parents[3] / "docs" / "schema"


@pytest.mark.parametrize("item", [data.JUDO, data.TIMES, data.TALK, data.FLAG, data.HOSTILE, data.EMPTY])
def test_the_original_cut_at_its_edges_is_what_the_regions_say(item: Item) -> None:
    evidence = data.walk(data.QUESTION, item)
    original = trace.original(replace(item, tree=b"blob"), evidence)
    assert original.item == item, "the item as it is, without its tree"
    assert len(original.edges) == evidence.fragments + 1
    for region in evidence.regions:
        assert (region.start, region.end) == (original.edges[region.first], original.edges[region.last])
        if isinstance(item, TextItem):
            assert item.text[region.start : region.end] == region.text


def test_an_item_cut_another_way_here_than_on_the_server_is_left_out() -> None:
    evidence = data.walk(data.QUESTION, data.JUDO)
    assert trace.original(data.JUDO, replace(evidence, fragments=9)) is msgspec.UNSET
    moved = replace(evidence.regions[0], end=evidence.regions[0].end + 1)
    assert trace.original(data.JUDO, replace(evidence, regions=[moved, *evidence.regions[1:]])) is msgspec.UNSET


async def test_items_are_kept_only_where_a_trace_is_asked_for() -> None:
    for asked in (True, False):
        answer = await data.answer([data.JUDO, data.TIMES], [data.TALK], trace=asked)
        assert [isinstance(one.original, msgspec.UnsetType) for one in answer.evidence] == [not asked] * 3
        assert (b'"original"' in msgspec.json.encode(answer)) is asked


async def test_a_trace_reads_back_as_it_was_written(tmp_path: Path) -> None:
    answer = await data.answer([data.JUDO, data.TIMES, data.HOSTILE], [data.TALK, data.FLAG, data.EMPTY])
    path = trace.write(tmp_path, [answer], model="m", settings={})
    content = trace.read(path)
    assert content.answers == [answer]
    assert content.format == trace.FORMAT
    check(content)


def test_the_published_schema_is_the_code_s() -> None:
    for name, text in schema.published().items():
        assert (SCHEMAS / name).read_text(encoding="utf-8") == text


def edited(**changes: Any) -> dict[str, Any]:
    """The example with values at dotted paths changed; ``...`` takes the field away."""
    tree = json.loads(msgspec.json.encode(data.example()))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = tree
        for part in parents:
            place = place[int(part) if part.isdigit() else part]
        key = int(last) if last.isdigit() else last
        if value is ...:
            del place[key]
        else:
            place[key] = value
    return tree


FIRST = "answers__0__evidence__0"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "field 'format'"),
        ({"log": {"version": "1.2"}}, "field 'format'"),
        ({"format": 1, "created": ""}, r"field 'format': 1, this version reads 2 to 4: ask again"),
        ({"format": 5}, "use a newer canopy"),
        ([], "Expected `object`"),
        (edited(created=...), "field 'created'"),
        (edited(answers__0__question=7), r"field 'answers\[\.\.\.\]\.question'|field 'answers\[0\]\.question'"),
        (edited(**{f"{FIRST}__evidence__regions__0__score": "high"}), r"evidence\.regions\[.*\]\.score"),
        (edited(**{f"{FIRST}__original__item__modality": "smell"}), r"original\.item\.modality"),
        (edited(answers__0__stop="tired"), "stop"),
    ],
)
def test_a_file_of_another_form_is_told_by_its_field(content: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidRequest, match=words) as told:
        trace.read(path)
    assert "t.json" in str(told.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answers": []}, "field 'answers': empty"),
        ({"answers__0__rounds__1__number": 7}, r"'answers\[0\]\.rounds\[1\]\.number'"),
        ({f"{FIRST}__round": 3}, r"'answers\[0\]\.evidence\[0\]\.round'"),
        ({f"{FIRST}__number": 4}, r"evidence\[0\]\.number"),
        ({f"{FIRST}__evidence__fragments": 0}, r"evidence\.fragments"),
        ({f"{FIRST}__evidence__regions__0__last": 99}, r"evidence\.regions\[0\]"),
        ({f"{FIRST}__evidence__trace__nodes": []}, r"trace\.nodes': empty"),
        ({f"{FIRST}__evidence__trace__nodes__0__last": 3}, r"trace\.nodes\[0\]': is not the root"),
        ({f"{FIRST}__evidence__trace__nodes__2__parent": 55}, r"trace\.nodes\[2\]\.parent"),
        ({f"{FIRST}__evidence__trace__nodes__2__node": 0}, r"trace\.nodes\[2\]\.node"),
        ({f"{FIRST}__evidence__trace__nodes__2__first": 5}, r"trace\.nodes\[2\]\.first"),
        ({f"{FIRST}__evidence__trace__nodes__5__outcome": "split"}, "not the evidence's regions"),
        ({f"{FIRST}__original__edges__1": -1}, r"original\.edges"),
        ({f"{FIRST}__original__edges": [0, 1]}, r"original\.edges"),
        ({f"{FIRST}__original__item__id": "other"}, r"original\.item\.id"),
    ],
)
def test_a_trace_that_contradicts_itself_is_told_by_its_field(changes: dict[str, Any], words: str) -> None:
    content = msgspec.convert(edited(**changes), trace.TraceFile)
    with pytest.raises(InvalidRequest, match=words):
        check(content)


def test_the_example_does_not_contradict_itself() -> None:
    check(data.example())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_cut_file_is_told(share: float, tmp_path: Path) -> None:
    payload = msgspec.json.encode(data.example())
    path = tmp_path / "cut.json"
    path.write_bytes(payload[: int(len(payload) * share)])
    with pytest.raises(InvalidRequest, match="not a whole JSON file"):
        trace.read(path)


def test_bytes_nesting_and_size_that_no_trace_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "odd.json"
    for payload, words in ((b"\xff\xfe{}", "not a whole JSON"), (b'{"format": 2, "x": ' + b"[" * 100_000, "odd.json")):
        path.write_bytes(payload)
        with pytest.raises(InvalidRequest, match=words):
            trace.read(path)
    with pytest.raises(InvalidRequest, match="No such file"):
        trace.read(tmp_path / "none.json")
    with pytest.raises(InvalidRequest, match="directory"):
        trace.read(tmp_path)
    monkeypatch.setattr(trace, "MAX_BYTES", 10)
    with pytest.raises(InvalidRequest, match="at most 10 are read"):
        trace.read(path)
