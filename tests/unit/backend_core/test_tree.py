"""Tree blobs: exact round trips, and one clear error for everything else."""

import struct
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import EncoderMismatch, InvalidItem
from canopy_backend.fragments import Fragments
from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.items import Cue, ImageItem, TableItem, TextItem, VideoItem
from canopy_backend.tree import Tree, content_hash, decode_tree, decode_trees, encode_tree

REVISION = "00112233445566ff"


def tree_of(n_fragments=3, *, dimension=4, branching=2, seed=0):
    """A text item of one letter a fragment, and its tree."""
    rng = np.random.default_rng(seed)
    item = TextItem(id="passage", title="Judo", text="x" * n_fragments)
    h = balanced(n_fragments, branching)
    edges = np.arange(n_fragments + 1, dtype=np.int32)
    return item, Tree(
        REVISION,
        content_hash(item),
        Fragments("text", np.stack([edges[:-1], edges[1:]], axis=1)),
        h,
        rng.normal(size=(h.size, dimension)).astype(np.float16),
        rng.integers(0, 50, n_fragments + 1).astype(np.int32),
        b"reader01",
    )


def resealed(blob):
    """The blob with a checksum that is right again."""
    return blob[:56] + struct.pack("<I", zlib.crc32(blob[60:], zlib.crc32(blob[:56]))) + blob[60:]


@given(st.integers(1, 60) | st.integers(1, 3000), st.integers(1, 8), st.integers(2, 5))
@settings(deadline=None, max_examples=30)
def test_round_trip_is_exact(n_fragments, dimension, branching):
    item, tree = tree_of(n_fragments, dimension=dimension, branching=branching)
    blob = encode_tree(tree)
    read = decode_tree(blob, item=item, revision=REVISION)
    assert np.array_equal(read.fragments.spans, tree.fragments.spans)
    assert np.array_equal(read.tokens, tree.tokens)
    assert read.vectors.tobytes() == tree.vectors.tobytes()
    assert read.hierarchy is balanced(n_fragments, branching)
    assert (read.revision, read.content, read.reader) == (REVISION, tree.content, b"reader01")
    assert (read.fragments.unit, read.vectors.dtype, read.tokens.dtype) == ("text", np.float16, np.int32)
    assert encode_tree(read) == blob


def test_reads_without_copying():
    item, tree = tree_of()
    blob = encode_tree(tree)
    read = decode_tree(blob, item=item, revision=REVISION)
    assert np.shares_memory(read.vectors, np.frombuffer(blob, np.uint8))
    assert not read.vectors.flags.writeable


def test_the_layout_is_the_published_one():
    _, tree = tree_of(2, dimension=3)
    blob = encode_tree(tree)
    assert blob[:8] == b"CNPYTREE"
    assert struct.unpack_from("<HBBHHII", blob, 8) == (1, 1, 0, 2, 3, 2, 3)
    assert blob[24:32].hex() == REVISION
    assert blob[32:48] == tree.content
    assert len(blob) == 60 + 2 * 8 + 3 * 16 + 3 * 4 + 3 * 3 * 2
    assert blob == resealed(blob)


def test_no_prefix_of_a_blob_is_a_tree():
    item, tree = tree_of()
    blob = encode_tree(tree)
    for size in range(len(blob)):
        with pytest.raises(InvalidItem, match="'tree'"):
            decode_tree(blob[:size], item=item, revision=REVISION)
    with pytest.raises(InvalidItem, match="'tree'"):
        decode_tree(blob + b"\x00", item=item, revision=REVISION)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_no_flipped_byte_goes_unnoticed(data):
    item, tree = tree_of(data.draw(st.integers(1, 6)))
    blob = bytearray(encode_tree(tree))
    place = data.draw(st.integers(0, 59) | st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidItem) as caught:
        decode_tree(bytes(blob), item=item, revision=REVISION)
    assert (caught.value.field, caught.value.item_id) == ("tree", "passage")


@given(st.data())
@settings(deadline=None, max_examples=120)
def test_a_forged_checksum_gives_no_other_error(data):
    item, tree = tree_of(data.draw(st.integers(1, 5)), branching=data.draw(st.integers(2, 3)))
    blob = bytearray(encode_tree(tree))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, 59) | st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_tree(resealed(bytes(blob)), item=item, revision=REVISION)
    except (InvalidItem, EncoderMismatch):
        return
    assert len(read.vectors) == read.hierarchy.size
    assert np.isfinite(read.vectors).all()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(blob):
    item, _ = tree_of()
    with pytest.raises(InvalidItem):
        decode_tree(blob, item=item, revision=REVISION)


def test_another_encoder_is_named_beside_ours():
    item, tree = tree_of()
    with pytest.raises(EncoderMismatch, match=f"passage.*{REVISION}.*{'ab' * 8}"):
        decode_tree(encode_tree(tree), item=item, revision="ab" * 8)


def damaged(name):
    """A tree that is whole and says something that cannot be, and the reason expected."""
    item, tree = tree_of(4)
    blob = encode_tree(tree)
    spans, nodes, tokens = 60, 60 + 32, 60 + 32 + 7 * 16
    vectors = tokens + 20
    place, value, reason = {
        "gap": (spans + 4, struct.pack("<i", 0), "cover"),
        "end": (spans + 28, struct.pack("<i", 9), "cover"),
        "node": (nodes + 8, struct.pack("<i", 2), "balanced"),
        "token": (tokens, struct.pack("<i", -1), "negative"),
        "vector": (vectors, struct.pack("<e", np.nan), "finite"),
        "unit": (11, b"\x01", "modality"),
        "unknown unit": (11, b"\x09", "header"),
        "branching": (12, b"\x01\x00", "header"),
        "other branching": (12, b"\x04\x00", "balanced"),
        "version": (8, b"\x02", "version"),
        "dtype": (10, b"\x02", "version"),
    }[name]
    return item, resealed(blob[:place] + value + blob[place + len(value) :]), reason


@pytest.mark.parametrize(
    "name",
    [
        *("gap", "end", "node", "token", "vector", "unit", "unknown unit", "branching", "other branching"),
        *("version", "dtype"),
    ],
)
def test_what_does_not_add_up_is_refused(name):
    item, blob, reason = damaged(name)
    with pytest.raises(InvalidItem, match=reason):
        decode_tree(blob, item=item, revision=REVISION)


ITEMS = [
    TextItem(id="a", title="t", text="Some text."),
    TableItem(id="a", title="t", columns=["x", "y"], rows=[["1", "2"]], caption="c", header_rows=[["h"]]),
    VideoItem(id="a", title="t", duration_s=65, segments=[Cue(0, 3, "Hello")]),
    ImageItem(id="a", title="t", caption="c"),
]
CHANGES = [
    (0, {"title": "u"}),
    (0, {"text": "Some text!"}),
    (1, {"columns": ["x", "z"]}),
    (1, {"rows": [["1"], ["2"]]}),
    (1, {"caption": ""}),
    (1, {"header_rows": []}),
    (2, {"duration_s": 66}),
    (2, {"segments": [Cue(0, 4, "Hello")]}),
    (3, {"caption": "d"}),
]


@pytest.mark.parametrize(("which", "change"), CHANGES)
def test_content_that_is_encoded_changes_the_hash(which, change):
    item = ITEMS[which]
    assert content_hash(item) != content_hash(msgspec.structs.replace(item, **change))


def test_where_an_item_comes_from_does_not_change_the_hash():
    for item in ITEMS:
        assert content_hash(msgspec.structs.replace(item, id="b", source="s", tree=b"x")) == content_hash(item)
    assert len({content_hash(item) for item in ITEMS}) == 4
    whole, decimal = ITEMS[2], msgspec.structs.replace(ITEMS[2], duration_s=65.0)
    assert content_hash(whole) == content_hash(decimal)


def test_a_tree_of_other_content_is_refused():
    item, tree = tree_of()
    with pytest.raises(InvalidItem, match="other content"):
        decode_tree(encode_tree(tree), item=msgspec.structs.replace(item, text="yyy"), revision=REVISION)


def test_arrays_that_do_not_belong_together_are_not_written():
    _, tree = tree_of()
    last = np.array([3, 1, 3, 2, 3], np.int32)
    first = np.array([0, 0, 1, 1, 2], np.int32)
    skewed = Hierarchy(np.array([-1, 0, 0, 2, 2], np.int32), first, last, np.array([0, 1, 1, 2, 2], np.int32))
    for change in (
        {"tokens": tree.tokens[1:]},
        {"vectors": tree.vectors[1:]},
        {"hierarchy": balanced(4)},
        {"hierarchy": skewed},
    ):
        parts = {name: getattr(tree, name) for name in Tree.__slots__}
        with pytest.raises(ValueError, match="a tree of"):
            encode_tree(Tree(**{**parts, **change}))


def carrying(sizes):
    """Items that bring their trees."""
    pairs = [tree_of(size, seed=place) for place, size in enumerate(sizes)]
    return [
        msgspec.structs.replace(item, id=f"{place}", tree=encode_tree(tree)) for place, (item, tree) in enumerate(pairs)
    ]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
@settings(deadline=None, max_examples=30)
def test_trees_read_together_are_those_read_alone(sizes):
    items = carrying(sizes)
    together = decode_trees(items, revision=REVISION)
    alone = [decode_tree(item.tree, item=item, revision=REVISION) for item in items]
    assert [encode_tree(tree) for tree in together] == [encode_tree(tree) for tree in alone]
    assert [tree.hierarchy for tree in together] == [tree.hierarchy for tree in alone]


@pytest.mark.parametrize("name", ["gap", "end", "node", "token", "vector", "unit", "version"])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_bad_tree_among_good_ones_is_named_by_its_place(name, place):
    items = carrying([3, 1, 7, 2])
    item, blob, reason = damaged(name)
    items.insert(place, msgspec.structs.replace(item, tree=blob))
    with pytest.raises(InvalidItem, match=reason) as caught:
        decode_trees(items, revision=REVISION)
    assert (caught.value.index, caught.value.item_id, caught.value.field) == (place, "passage", "tree")


def test_large_trees_are_checked_in_parts(monkeypatch):
    monkeypatch.setattr("canopy_backend.tree._CHECKED_VALUES", 40)
    items = carrying([3, 9, 1, 5])
    item, blob, reason = damaged("vector")
    with pytest.raises(InvalidItem, match=reason) as caught:
        decode_trees([*items, msgspec.structs.replace(item, tree=blob)], revision=REVISION)
    assert caught.value.index == 4
    assert len(decode_trees(items, revision=REVISION)) == 4


def test_an_item_without_a_tree_is_refused():
    items = carrying([2, 2])
    with pytest.raises(InvalidItem) as caught:
        decode_trees([items[0], msgspec.structs.replace(items[1], tree=None)], revision=REVISION)
    assert caught.value.index == 1
