"""Items on the wire: round trips, and refusals that name item and field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.errors import InvalidItem, LimitExceeded
from canopy_backend.items import (
    Cue,
    ImageItem,
    Item,
    TableItem,
    TextItem,
    VideoItem,
    bring_trees,
    decode_item,
    decode_items,
    encode_item,
    json_schema,
)
from canopy_backend.limits import Limits

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
times = st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)).map(sorted)
cues = st.builds(lambda span, words: Cue(span[0], span[1], words), times, text)
trees = st.none() | st.binary(max_size=40)


@st.composite
def tables(draw: st.DrawFn) -> TableItem:
    columns = draw(st.lists(text, min_size=1, max_size=4))
    row = st.lists(text, max_size=len(columns))
    return TableItem(
        id=draw(ids), title=draw(text), columns=columns, rows=draw(st.lists(row, max_size=5)),
        header_rows=draw(st.lists(row, max_size=2)), caption=draw(text), tree=draw(trees),
    )  # fmt: skip


items = st.one_of(
    st.builds(TextItem, id=ids, title=text, source=text, text=text, tree=trees),
    tables(),
    st.builds(VideoItem, id=ids, duration_s=st.floats(0.001, 1e5), segments=st.lists(cues, max_size=4), uri=text),
    st.builds(ImageItem, id=ids, caption=text, uri=text),
)


@given(items)
def test_an_item_survives_the_wire(item: Item) -> None:
    assert decode_item(encode_item(item)) == item


@given(st.binary(max_size=200))
def test_any_bytes_are_an_item_or_a_named_refusal(payload: bytes) -> None:
    try:
        item = decode_item(payload)
    except InvalidItem:
        return
    assert decode_item(encode_item(item)) == item


def test_unknown_fields_pass_by() -> None:
    item = decode_item(b'{"id": "a", "modality": "text", "text": "x", "sents": [[0, 1]], "meta": {"k": null}}')
    assert item == TextItem(id="a", text="x")


@pytest.mark.parametrize(
    ("payload", "item_id", "field"),
    [
        (b'{"id": "a", "modality": "text"}', "a", "text"),
        (b'{"id": "a", "modality": "txt", "text": ""}', "a", "modality"),
        (b'{"id": "a"}', "a", "modality"),
        (b'{"modality": "text", "text": ""}', None, "id"),
        (b'{"id": 7, "modality": "text", "text": ""}', None, "id"),
        (b'{"id": "a", "modality": "table", "columns": ["c"], "rows": [["x"], [1]]}', "a", "rows[1][0]"),
        (b'{"id": "a", "modality": "table", "columns": ["c"], "rows": [["x"], ["1", "2"]]}', "a", "rows[1]"),
        (
            b'{"id": "a", "modality": "table", "columns": ["c"], "rows": [], "header_rows": [["1", "2"]]}',
            "a",
            "header_rows[0]",
        ),
        (b'{"id": "a", "modality": "video", "duration_s": -1}', "a", "duration_s"),
        (b'{"id": "a", "modality": "video", "duration_s": 1e999}', "a", "duration_s"),
        (b'{"id": "a", "modality": "video", "duration_s": 1e300}', "a", "duration_s"),
        (
            b'{"id": "a", "modality": "video", "duration_s": 9, "segments": [{"start": 3, "end": 2, "text": ""}]}',
            "a",
            "segments[0]",
        ),
        (b'{"id": "a", "modality": "text", "text": "", "tree": "?"}', "a", "tree"),
    ],
)
def test_a_refusal_names_item_and_field(payload: bytes, item_id: str | None, field: str) -> None:
    with pytest.raises(InvalidItem) as caught:
        decode_items([b'{"id": "z", "modality": "image"}', payload], Limits())
    assert (caught.value.index, caught.value.item_id, caught.value.field) == (1, item_id, field)
    assert "item 1" in str(caught.value)


def test_a_repeated_id_names_both_places() -> None:
    with pytest.raises(InvalidItem, match=r"item 1 \('a'\), field 'id': repeats the id of item 0"):
        decode_items([b'{"id": "a", "modality": "image"}'] * 2, Limits())


def test_limits_are_named() -> None:
    small = Limits(max_items=2, max_item_bytes=50)
    with pytest.raises(LimitExceeded, match=r"3 is over the limit max_items=2"):
        decode_items([b"{}"] * 3, small)
    with pytest.raises(LimitExceeded, match=r"item 0 \('a'\): bytes: \d+ is over the limit max_item_bytes=50"):
        decode_items([encode_item(TextItem(id="a", text="x" * 60))], small)


def test_a_tree_does_not_count_as_bytes_of_the_item() -> None:
    item = TextItem(id="a", text="x", tree=b"\0" * 3000)
    assert decode_items([encode_item(item)], Limits(max_item_bytes=60)) == [item]


def test_the_schema_lists_the_four_modalities() -> None:
    schema = json_schema()
    assert set(schema["discriminator"]["mapping"]) == {"text", "table", "video", "image"}
    json.dumps(schema)


@pytest.mark.parametrize(
    ("payloads", "all_of_them"),
    [
        ([b'{"tree": "AA=="}'], True),
        ([b'{"id": "a", "tree": "AA==", "text": "x"}', b'{"tree":""}'], True),
        ([b'{"tree": "AA=="}', b'{"id": "a"}'], False),
        ([b'{"tree": null}'], False),
        ([b'{"text": "\\"tree\\": 1"}'], False),
        ([b'{"tree": "AA=="', b""], False),
        ([b"[1]"], False),
        ([b"[" * 100_000], False),
        ([b"\xff"], False),
        ([], False),
    ],
)
def test_a_glance_tells_whether_every_item_brings_a_tree(payloads: list[bytes], all_of_them: bool) -> None:
    assert bring_trees(payloads) is all_of_them
