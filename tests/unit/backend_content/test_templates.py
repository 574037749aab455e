"""What encoders read: titles, captions and headers in front of every node."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.fragments import fragment, render
from canopy_backend.items import Cue, ImageItem, TableItem, TextItem, VideoItem
from canopy_backend.templates import TEMPLATE_HASH, item_text, node_text, prefix_text, query_text

ITEMS = [
    TextItem(id="a", title="Weir", text="It opens. It shuts."),
    TextItem(id="b", text="It opens. It shuts."),
    TextItem(id="c", title="Weir", text=""),
    TableItem(id="d", title="Gates", caption="Since 1931", columns=["x", "y"], rows=[["1", "2"], ["3", "4"]]),
    TableItem(id="e", columns=["x"], header_rows=[["top"]], rows=[]),
    VideoItem(id="f", title="Tour", duration_s=70, segments=[Cue(1, 2, "Hello."), Cue(40, 41, "Bye.")]),
    ImageItem(id="g", title="Dawn", caption="The weir at dawn."),
]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_every_node_begins_with_the_prefix(item):
    fragments = fragment(item)
    for place in range(len(fragments)):
        assert node_text(item, render(item, fragments, place, place + 1)).startswith(prefix_text(item))
    assert item_text(item).startswith(prefix_text(item))


def test_texts_of_each_modality():
    text, untitled, empty, table, bare, clip, image = ITEMS
    assert node_text(text, "It shuts.") == "Weir\nIt shuts."
    assert item_text(untitled) == "It opens. It shuts."
    assert item_text(empty) == prefix_text(empty) == "Weir"
    assert item_text(table) == "Gates\nSince 1931\n| x | y |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"
    assert prefix_text(table) == "Gates\nSince 1931\n| x | y |\n| --- | --- |"
    assert item_text(bare) == prefix_text(bare) == "| top |\n| x |\n| --- |"
    assert item_text(clip) == "Tour\nHello.\nBye."
    assert item_text(image) == "Dawn\nThe weir at dawn."
    assert prefix_text(image) == "Dawn"


@given(st.text())
def test_a_query_is_read_without_white_space_around_it(query):
    assert query_text(f" \n{query}\t") == query.strip()


def test_the_hash_is_sixteen_hex_digits():
    assert len(TEMPLATE_HASH) == 16
    assert set(TEMPLATE_HASH) <= set(string.hexdigits.lower())
