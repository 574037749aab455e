"""Rows: what is refused, what fits where, and that everything comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import EncoderMismatch, InvalidItem, LimitExceeded, RetrievalError
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.tree import Tree, content_hash, encode_tree
from canopy_milvus import IndexedItem
from canopy_milvus import rows as rows_module
from canopy_milvus.rows import MAX_STRING_BYTES, decode_row, encode_row, surface_text

REVISION = "0123456789abcdef"
VECTOR = np.full(4, 0.5, np.float32)


def tree_of(item: Item, revision: str = REVISION, dimension: int = 4) -> bytes:
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    vectors = np.full((hierarchy.size, dimension), 0.5, np.float16)
    tokens = np.ones(len(fragments) + 1, np.int32)
    return encode_tree(Tree(revision, content_hash(item), fragments, hierarchy, vectors, tokens))


def row_of(item: Item, tree: bytes = b"", vector: object = VECTOR, words: bool = True) -> rows_module.Row:
    return encode_row(IndexedItem(item, tree, vector), dimension=4, revision=REVISION, words=words)  # type: ignore[arg-type]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=512)
items = st.one_of(
    st.builds(TextItem, id=ids, title=texts, text=texts),
    st.builds(ImageItem, id=ids, title=texts, caption=texts, uri=texts),
    st.builds(TableItem, id=ids, caption=texts, columns=st.lists(texts, min_size=1, max_size=1)).map(
        lambda item: TableItem(id=item.id, caption=item.caption, columns=item.columns, rows=[[item.caption]])
    ),
)


@settings(max_examples=60, deadline=None)
@given(items)
def test_what_goes_in_comes_out(item: Item) -> None:
    assert decode_row(row_of(item).values) == item


@settings(max_examples=20, deadline=None)
@given(st.text(st.sampled_from("aé日😀"), min_size=1, max_size=40))
def test_long_items_are_cut_between_characters(part: str) -> None:
    item = TextItem(id="long", text=part * (200_000 // len(part)))
    values = row_of(item).values
    assert max(len(piece.encode()) for piece in (*values["item"], values["text"])) <= MAX_STRING_BYTES
    assert decode_row(values) == item


def test_a_tree_comes_back_byte_for_byte() -> None:
    item = TextItem(id="a", text="One sentence here. Another one there.")
    blob = tree_of(item)
    found = decode_row(row_of(item, blob).values)
    assert found.tree == blob
    assert item.tree is None


def test_a_tree_that_is_too_long_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 300)
    item = TextItem(id="a", text="One sentence here. Another one there.")
    values = row_of(item, tree_of(item, dimension=64)).values
    assert values["tree_stored"] is False
    assert decode_row(values).tree is None


def test_a_tree_of_another_encoder_is_refused() -> None:
    item = TextItem(id="a", text="One sentence here.")
    with pytest.raises(EncoderMismatch, match=r"fedcba9876543210.*0123456789abcdef"):
        row_of(item, tree_of(item, "fedcba9876543210"))


def test_a_tree_of_another_item_is_refused() -> None:
    with pytest.raises(InvalidItem, match="tree"):
        row_of(TextItem(id="a", text="Mine."), tree_of(TextItem(id="a", text="Yours.")))


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        ([1.0, np.nan, 0.0, 0.0], "NaN"),
        ([1.0, np.inf, 0.0, 0.0], "infinite"),
        ([0.0, 0.0, 0.0, 0.0], "zero"),
        ([1.0, 0.0], r"\[2\].*\[4\]"),
        ([[1.0, 0.0, 0.0, 0.0]], r"\[1, 4\]"),
        (["a", "b", "c", "d"], "convert"),
    ],
)
def test_a_vector_that_cannot_be_searched_is_refused(vector: object, reason: str) -> None:
    with pytest.raises(InvalidItem, match=reason) as caught:
        row_of(TextItem(id="a", text="x"), vector=vector)
    assert caught.value.field == "embedding"


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (TextItem(id="", text="x"), "id"),
        (TextItem(id="x" * 513, text="x"), "id"),
        (TextItem(id="a\0b", text="x"), "id"),
        (TextItem(id="a", source="b\0", text="x"), "source"),
    ],
)
def test_a_key_that_cannot_be_stored_is_refused(item: Item, field: str) -> None:
    with pytest.raises(InvalidItem) as caught:
        row_of(item)
    assert caught.value.field == field


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidItem, match="surrogate"):
        row_of(TextItem(id="a", text="\ud800"))


def test_limits_are_counted_in_bytes() -> None:
    assert row_of(TextItem(id="😀" * 512, text="x")).id == "😀" * 512
    with pytest.raises(LimitExceeded, match="bytes of source: 4098 is over the limit max_source_bytes=4096"):
        row_of(TextItem(id="a", source="日" * 1366, text="x"))


def test_an_item_beyond_every_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_ITEM_BYTES", 100)
    with pytest.raises(LimitExceeded, match=r"item 'big': bytes: .* max_stored_item_bytes=100"):
        row_of(TextItem(id="big", text="x" * 200))


def test_nul_in_text_is_kept_in_the_item_and_a_space_among_the_words() -> None:
    item = TextItem(id="a", title="t\0t", text="b\0c")
    values = row_of(item).values
    assert values["text"] == "t t\nb c"
    assert values["title"] == "t t"
    assert decode_row(values) == item


def test_words_are_left_out_where_they_are_not_indexed() -> None:
    assert "text" not in row_of(TextItem(id="a", text="x"), words=False).values


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (TextItem(id="a", title="T", text="x y"), "T\nx y"),
        (TableItem(id="a", caption="C", columns=["p", "q"], rows=[["1", "2"], ["3"]]), "C\np q\n1 2\n3"),
        (VideoItem(id="a", title="V", duration_s=9, segments=[Cue(0, 1, "hi"), Cue(1, 2, "you")]), "V\nhi\nyou"),
        (ImageItem(id="a", caption="A cat"), "A cat"),
    ],
)
def test_the_words_of_each_modality(item: Item, words: str) -> None:
    assert surface_text(item) == words


def test_a_row_of_someone_else_is_an_error_that_names_it() -> None:
    with pytest.raises(RetrievalError, match="'x1'"):
        decode_row({"item_id": "x1", "item": ['{"no": 1}'], "tree_stored": False})
