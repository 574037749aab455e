"""Evidence and traces: regions, joined text, gaps, counts, and their JSON."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import InvalidRequest
from canopy_backend.evidence import (
    Trace,
    assemble,
    assemble_many,
    decisions,
    decode_evidence,
    encode_evidence,
    encode_trace,
)
from canopy_backend.fragments import fragment, render
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, ImageItem, TableItem, TextItem, VideoItem
from canopy_backend.schema import published

SCHEMAS = Path(__file__).parents[3] / "docs" / "schema"
HALE = TextItem(id="h", title="Dam", text="Hale drew it. It held.  It leaks. She left in 1930.\n")


def evidence(item, kept, truncated=False):
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    scores = np.linspace(0.1, 0.9, hierarchy.size, dtype=np.float32)
    tokens = np.arange(1, len(fragments) + 2, dtype=np.int32)
    return assemble(item, fragments, hierarchy, np.array(kept, np.int32), scores, tokens, truncated)


def test_kept_sentences_are_in_source_order_with_gaps_marked():
    # Four leaves are nodes 3 to 6.
    found = evidence(HALE, [3, 6])
    assert found.text == "Hale drew it. […] She left in 1930.\n"
    assert [(region.first, region.last, region.depth, region.start, region.end) for region in found.regions] == [
        (0, 1, 2, 0, 14),
        (3, 4, 2, 34, 52),
    ]
    assert [HALE.text[region.start : region.end] for region in found.regions] == [r.text for r in found.regions]
    assert (found.fragments, found.kept_fragments, found.tokens_in, found.tokens_kept) == (4, 2, 15, 1 + 4 + 5)
    assert (found.whole, found.truncated, found.unit, found.title) == (False, False, "code_point", "Dam")


def test_regions_that_touch_have_no_gap():
    assert evidence(HALE, [4, 5]).text == "It held.  It leaks. "
    assert evidence(HALE, [3, 4, 6]).text == "Hale drew it. It held. […] She left in 1930.\n"


@pytest.mark.parametrize("kept", [[0], [1, 2], [3, 4, 2]])
def test_an_item_kept_whole_is_the_original(kept):
    found = evidence(HALE, kept, truncated=True)
    assert found.text == HALE.text
    assert found.whole
    assert found.truncated
    assert found.tokens_kept == found.tokens_in


def test_regions_of_a_table_are_one_table():
    item = TableItem(id="t", columns=["n", "v"], rows=[[str(row), "x"] for row in range(4)])
    found = evidence(item, [3, 6])
    header = "| n | v |\n| --- | --- |\n"
    assert found.text == f"{header}| 0 | x |\n| … | … |\n| 3 | x |"
    assert [region.text for region in found.regions] == [f"{header}| 0 | x |", f"{header}| 3 | x |"]
    assert evidence(item, [1, 2]).text == evidence(item, [0]).text == render(item, fragment(item), 0, 4)
    assert found.unit == "row"


def test_regions_of_a_transcript():
    cues = [Cue(1, 2, "one"), Cue(29, 95, "over all"), Cue(40, 41, "two"), Cue(100, 101, "four")]
    item = VideoItem(id="v", duration_s=120, segments=cues)
    found = evidence(item, [3, 6])
    assert found.text == "one\nover all\n[…]\nfour"
    assert [region.text for region in found.regions] == ["one\nover all", "over all\nfour"]
    assert (found.regions[1].start, found.regions[1].end, found.unit) == (90_000, 120_000, "millisecond")
    assert evidence(item, [1, 2]).text == "one\nover all\ntwo\nfour"


def test_a_silent_region_leaves_no_mark():
    item = VideoItem(id="v", duration_s=120, segments=[Cue(1, 2, "one")])
    assert evidence(item, [3, 6]).text == "one"


@pytest.mark.parametrize(
    "item",
    [
        TextItem(id="a", text=""),
        TextItem(id="b", text="  \n"),
        TableItem(id="c", columns=["x"], rows=[]),
        VideoItem(id="d", duration_s=20),
        ImageItem(id="e", caption="Dawn."),
    ],
    ids=lambda item: item.id,
)
def test_an_item_of_one_fragment_is_whole(item):
    found = evidence(item, [0])
    assert found.whole
    assert found.kept_fragments == found.fragments == len(found.regions) == 1
    assert decode_evidence(encode_evidence(found)) == found


def test_json_has_plain_values_in_the_published_form():
    found = json.loads(encode_evidence(evidence(HALE, [3, 6])))
    assert list(found) == [
        *("item_id", "modality", "title", "text", "regions", "unit", "fragments", "kept_fragments"),
        *("tokens_in", "tokens_kept", "whole", "truncated"),
    ]
    assert found["regions"][0] == {
        **{"first": 0, "last": 1, "depth": 2, "start": 0, "end": 14},
        **{"score": 0.5, "text": "Hale drew it. "},
    }


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b'{"item_id": 3}', b"\xff"])
def test_what_is_no_evidence_is_refused(payload):
    with pytest.raises(InvalidRequest, match="not an evidence"):
        decode_evidence(payload)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_laws_of_evidence(count, data):
    item = TextItem(id="x", text=" ".join(f"Sentence {place} ends." for place in range(count)))
    hierarchy = balanced(count)
    kept, queue = [], [0]
    while queue:
        node = queue.pop(0)
        children = list(hierarchy.children(node))
        chosen = data.draw(st.lists(st.sampled_from(children), unique=True)) if children else []
        queue += chosen
        kept += [] if chosen else [node]
    kept.sort(key=lambda node: hierarchy.first[node])
    found = evidence(item, kept)
    assert found.kept_fragments == sum(region.last - region.first for region in found.regions)
    assert all(item.text[region.start : region.end] == region.text for region in found.regions)
    assert found.text.replace(" […] ", "").replace(" ", "") == "".join(r.text for r in found.regions).replace(" ", "")
    assert found.tokens_kept <= found.tokens_in
    assert found.whole == (found.text == item.text)
    trace = decisions(hierarchy, np.zeros(hierarchy.size, np.float32), np.array(kept, np.int32))
    outcomes = {decision.node: decision.outcome for decision in trace.nodes}
    assert sorted(node for node, outcome in outcomes.items() if outcome == "kept") == sorted(kept)
    for node, outcome in outcomes.items():
        below = [outcomes.get(child) for child in hierarchy.children(node)]
        assert all(below) if outcome == "split" else not any(below)


def test_a_trace_lists_what_a_kept_node_was_compared_with():
    hierarchy = balanced(4)
    scores = np.array([0.5, 0.8, 0.3, 0.7, 0.6, 0.1, 0.2], np.float32)
    nodes = decisions(hierarchy, scores, np.array([1], np.int32)).nodes
    assert [(one.node, one.outcome) for one in nodes] == [
        (0, "split"), (1, "kept"), (2, "dropped"), (3, "dropped"), (4, "dropped"),
    ]  # fmt: skip
    whole = decisions(hierarchy, scores, np.array([0], np.int32)).nodes
    assert [(one.node, one.outcome) for one in whole] == [(0, "kept")], "kept whatever its scores: nothing was compared"


def test_a_trace_lists_every_visited_node():
    hierarchy = balanced(4)
    scores = np.array([0.5, 0.8, 0.3, 0.7, 0.9, 0.1, 0.2], np.float32)
    trace = decisions(hierarchy, scores, np.array([4], np.int32))
    assert json.loads(encode_trace(trace))["nodes"] == [
        {"node": 0, "parent": -1, "first": 0, "last": 4, "depth": 0, "score": 0.5, "outcome": "split"},
        {"node": 1, "parent": 0, "first": 0, "last": 2, "depth": 1, "score": 0.8, "outcome": "split"},
        {"node": 2, "parent": 0, "first": 2, "last": 4, "depth": 1, "score": 0.3, "outcome": "dropped"},
        {"node": 3, "parent": 1, "first": 0, "last": 1, "depth": 2, "score": 0.7, "outcome": "dropped"},
        {"node": 4, "parent": 1, "first": 1, "last": 2, "depth": 2, "score": 0.9, "outcome": "kept"},
    ]
    assert msgspec.json.decode(encode_trace(trace), type=Trace) == trace


@pytest.mark.parametrize(("name", "text"), published().items())
def test_the_published_schema_is_the_code_s(name, text):
    assert (SCHEMAS / name).read_text(encoding="utf-8") == text


def test_items_assembled_together_are_those_assembled_alone():
    clip = VideoItem(id="v", duration_s=95, segments=[Cue(0, 4, "We fire at noon."), Cue(28, 65, "Then it cools.")])
    table = TableItem(id="t", columns=["a", "b"], rows=[["1", "2"], ["3"], ["4", "5"], []])
    items = [HALE, table, ImageItem(id="i", caption="A kiln."), clip, TextItem(id="n", text="")]
    chosen = [[3, 6], [1, 5], [0], [0], [0]]
    fragments = [fragment(item) for item in items]
    hierarchies = [balanced(len(one)) for one in fragments]
    scores = [np.linspace(0.1, 0.9, one.size, dtype=np.float32) for one in hierarchies]
    tokens = [np.arange(1, len(one) + 2, dtype=np.int32) for one in fragments]
    kept = [np.isin(np.arange(one.size), nodes) for one, nodes in zip(hierarchies, chosen, strict=True)]
    together, rows = assemble_many(items, fragments, hierarchies, np.concatenate(kept), np.concatenate(scores), tokens)
    assert together == [evidence(item, nodes) for item, nodes in zip(items, chosen, strict=True)]
    told = [(place, region) for place, one in enumerate(together) for region in one.regions]
    assert rows.item == [place for place, _ in told]
    for name in ("first", "last", "depth", "score"):
        assert getattr(rows, name) == [getattr(region, name) for _, region in told]
