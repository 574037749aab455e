"""The plan of a request: what crosses from its first step to its last."""

import hashlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.encoding import item_vectors, node_vectors, plan_items
from canopy_backend.errors import EncoderFailure, EncoderMismatch, InvalidItem, InvalidRequest, LimitExceeded
from canopy_backend.items import Frame, ImageItem, TableItem, TextItem, VideoItem
from canopy_backend.limits import Limits
from canopy_backend.plan import RequestPlan, indexed_trees, plan_request
from canopy_backend.qwen3vl.sight import SeenItem
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter
from canopy_backend.tree import encode_tree

REVISION = "ab" * 8
ITEMS = [
    TextItem(id="a", title="Judo", text="Kano was in Japan. Judo was played. The cup was gold. " * 3),
    TableItem(id="b", title="cup", columns=["x", "y"], rows=[[str(row), "gold"] for row in range(7)]),
    VideoItem(id="c", duration_s=95.0),
    ImageItem(id="d", caption="judo"),
    TextItem(id="e", title="Judo", text="judo was " * 90),
]


@pytest.fixture(scope="module")
def plan_of(tokenizer, counter):
    def call(items, limits=None, **changes):
        parts = {"tokenizer": tokenizer, "counter": counter, "revision": REVISION, "limits": limits or Limits()}
        return plan_request(items, **{**parts, **changes})

    return call


def encoded(rows, dimension=6):
    """A stand-in for the graph: a unit vector that depends on a segment's tokens and on nothing else."""
    n_rows, width = rows.input_ids.shape
    answer = np.zeros((n_rows, width // 4, dimension), np.float32)
    for row, slot in rows.slots.tolist():
        ids = rows.input_ids[row][rows.segment_ids[row] == slot + 1]
        seed = int.from_bytes(hashlib.sha256(ids.tobytes()).digest()[:8], "little")
        vector = np.random.default_rng(seed).normal(size=dimension)
        answer[row, slot] = vector / np.linalg.norm(vector)
    return answer


def trees_of(items, plan_of, counter):
    rows, plan = plan_of(items)
    return RequestPlan.from_bytes(plan.to_bytes()).trees(
        items, encoded(rows), revision=REVISION, reader=counter.revision
    )


@given(order=st.permutations(range(len(ITEMS))), size=st.integers(1, len(ITEMS)))
@settings(deadline=None, max_examples=25)
def test_an_item_has_the_same_tree_in_any_company(order, size, plan_of, counter):
    alone = [encode_tree(trees_of([item], plan_of, counter)[0]) for item in ITEMS]
    chosen = order[:size]
    together = trees_of([ITEMS[place] for place in chosen], plan_of, counter)
    assert [encode_tree(tree) for tree in together] == [alone[place] for place in chosen]


def test_a_tree_from_the_index_gives_what_encoding_gives(plan_of, counter):
    cold = trees_of(ITEMS, plan_of, counter)
    warm = [msgspec.structs.replace(item, tree=encode_tree(tree)) for item, tree in zip(ITEMS, cold, strict=True)]
    mixed = [*warm[:2], *ITEMS[2:]]
    for items in (warm, mixed):
        again = trees_of(items, plan_of, counter)
        assert [encode_tree(tree) for tree in again] == [encode_tree(tree) for tree in cold]


def test_items_with_trees_are_not_encoded(plan_of, counter):
    trees = trees_of(ITEMS, plan_of, counter)
    warm = [msgspec.structs.replace(item, tree=encode_tree(tree)) for item, tree in zip(ITEMS, trees, strict=True)]
    rows, plan = plan_of(warm)
    assert not any(item.cold for item in plan.items)
    # A model step cannot take zero rows.
    assert rows.input_ids.shape == (1, 64)
    assert not rows.segment_ids.any()


def test_equal_texts_are_encoded_once(plan_of):
    item = ITEMS[0]
    rows, _ = plan_of([item])
    twins, plan = plan_of([item, msgspec.structs.replace(item, id="twin")])
    assert np.array_equal(rows.input_ids, twins.input_ids)
    first, second = plan.items
    assert np.array_equal(first.parts, second.parts)


def test_tokens_of_another_reader_are_counted_again(plan_of, counter, byte_level_file):
    other = TokenCounter(byte_level_file)
    item = ITEMS[0]
    blob = encode_tree(trees_of([item], plan_of, counter)[0])
    _, plan = plan_of([msgspec.structs.replace(item, tree=blob)], counter=other)
    assert plan.items[0].tokens.tolist() == plan_of([item], counter=other)[1].items[0].tokens.tolist()


@given(items=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=5), with_windows=st.booleans())
@settings(deadline=None, max_examples=25)
def test_round_trip(items, with_windows, plan_of, tokenizer):
    _, plan = plan_of(items)
    if with_windows:
        plan = plan.with_windows(plan_items(items, tokenizer))
    data = plan.to_bytes()
    read = RequestPlan.from_bytes(np.frombuffer(data, np.uint8))
    assert read.to_bytes() == data
    for before, after in zip(plan.items, read.items, strict=True):
        assert before.hierarchy is after.hierarchy
        assert before.fragments.unit == after.fragments.unit
        assert np.array_equal(before.fragments.spans, after.fragments.spans)
        assert np.array_equal(before.tokens, after.tokens)
        assert np.array_equal(before.parts, after.parts)
    assert np.array_equal(plan.window_counts, read.window_counts)


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_broken_plan_is_refused_or_still_a_plan(data, plan_of):
    items = ITEMS[:2]
    rows, plan = plan_of(items)
    values = bytearray(plan.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 60) | st.integers(0, len(values) - 1))
        values[place] = data.draw(st.integers(0, 255))
    kept = data.draw(st.just(len(values)) | st.integers(0, len(values)))
    try:
        trees = RequestPlan.from_bytes(bytes(values[:kept])).trees(items, encoded(rows), revision=REVISION)
    except (InvalidRequest, InvalidItem):
        return
    assert all(len(tree.vectors) == tree.hierarchy.size for tree in trees)


def test_a_plan_without_a_leaf_is_refused(plan_of):
    rows, plan = plan_of(ITEMS[:1])
    (item,) = plan.items
    swapped = item.parts.copy()
    swapped[-1, 0] = swapped[-2, 0]
    for parts in (item.parts[:-1], swapped, item.parts[::-1].copy()):
        broken = replace(plan, items=[replace(item, parts=parts)])
        with pytest.raises(InvalidRequest, match=r"item 0 \('a'\): PLAN has no vector for one of its leaves"):
            broken.trees(ITEMS[:1], encoded(rows), revision=REVISION)


def test_values_that_are_not_finite_name_their_item(plan_of, tokenizer):
    rows, plan = plan_of(ITEMS[:2])
    answer = encoded(rows)
    _, row, slot, _ = plan.items[1].parts[0]
    answer[row, slot, 0] = np.nan
    with pytest.raises(EncoderFailure, match=r"item 1 \('b'\)"):
        plan.trees(ITEMS[:2], answer, revision=REVISION)
    plan = plan.with_windows(plan_items(ITEMS[:2], tokenizer))
    windows = np.ones((len(plan.window_weights), 3), np.float32)
    windows[-1] = np.inf
    with pytest.raises(EncoderFailure, match=r"item 1 \('b'\)"):
        plan.item_vectors(ITEMS[:2], windows)


def look(index, item, fragments, hierarchy):
    """A stand-in for encoding an item with pixels: two parts for the last node, one for each other."""
    nodes = np.array([*range(hierarchy.size), hierarchy.size - 1], np.int32)
    vectors = np.random.default_rng(index).normal(size=(len(nodes), 6)).astype(np.float32)
    return SeenItem(nodes, np.arange(1, len(nodes) + 1, dtype=np.int32), vectors, vectors[0])


SEEN = [
    ITEMS[0],
    ImageItem(id="picture", image=b"file"),
    ITEMS[1],
    VideoItem(id="clip", duration_s=70, frames=[Frame(1.0, b"file")]),
    ITEMS[3],
]


def test_items_with_pixels_bring_their_vectors_in_the_plan(plan_of, counter, tokenizer):
    rows, plan = plan_of(SEEN, see=look)
    assert plan.seen_places == {1, 3}
    read = RequestPlan.from_bytes(plan.with_windows(plan_items(SEEN, tokenizer, plan.seen_places)).to_bytes())
    trees = read.trees(SEEN, encoded(rows), revision=REVISION, reader=counter.revision)
    for place in (1, 3):
        tree = trees[place]
        found = look(place, SEEN[place], tree.fragments, tree.hierarchy)
        expected = node_vectors(tree.hierarchy, found.nodes, found.weights, found.vectors)
        assert np.array_equal(tree.vectors, expected)
    alone = trees_of([SEEN[0], SEEN[2], SEEN[4]], plan_of, counter)
    assert [encode_tree(trees[place]) for place in (0, 2, 4)] == [encode_tree(tree) for tree in alone]
    windows = np.random.default_rng(1).normal(size=(len(read.window_weights), 6)).astype(np.float32)
    vectors = read.item_vectors(SEEN, windows)
    assert np.array_equal(vectors[[1, 3]], read.seen_items)
    assert np.flatnonzero(read.window_counts == 0).tolist() == [1, 3]
    words = read.window_counts[[0, 2, 4]]
    assert np.array_equal(vectors[[0, 2, 4]], item_vectors(words, read.window_weights, windows))


def test_a_request_of_pictures_alone_has_one_row_of_padding_for_each_encoder(plan_of, counter, tokenizer):
    items = [SEEN[1], SEEN[3]]
    rows, plan = plan_of(items, see=look)
    assert not rows.segment_ids.any()
    read = RequestPlan.from_bytes(plan.with_windows(plan_items(items, tokenizer, plan.seen_places)).to_bytes())
    assert len(read.trees(items, encoded(rows), revision=REVISION)) == 2
    assert np.array_equal(read.item_vectors(items, np.zeros((1, 6), np.float32)), read.seen_items)
    with pytest.raises(InvalidRequest, match="other vectors"):
        read.item_vectors(items, np.zeros((1, 5), np.float32))


def test_without_an_encoder_that_sees_pictures_are_planned_by_their_words(plan_of, counter):
    blind = [msgspec.structs.replace(SEEN[1], image=None), msgspec.structs.replace(SEEN[3], frames=[])]
    for item, other in zip((SEEN[1], SEEN[3]), blind, strict=True):
        assert np.array_equal(plan_of([item])[0].input_ids, plan_of([other])[0].input_ids)


def test_what_cannot_be_seen_is_named_with_its_place(plan_of, counter, tokenizer):
    def refuse(index, item, fragments, hierarchy):
        if item.id == "clip":
            raise InvalidItem("cannot be decoded", item_id=item.id, field="frames[0].image")
        return look(index, item, fragments, hierarchy)

    with pytest.raises(InvalidItem, match=r"item 3 \('clip'\), field 'frames\[0\].image': cannot be decoded"):
        plan_of(SEEN, see=refuse)
    rows, plan = plan_of(SEEN, see=look)
    plan.seen[:, 0] = np.nan
    with pytest.raises(EncoderFailure, match=r"item 1 \('picture'\)"):
        plan.trees(SEEN, encoded(rows), revision=REVISION)
    plan = plan.with_windows(plan_items(SEEN, tokenizer, plan.seen_places))
    plan.seen_items[1, 0] = np.inf
    with pytest.raises(EncoderFailure, match=r"item 3 \('clip'\)"):
        plan.item_vectors(SEEN, np.ones((len(plan.window_weights), 6), np.float32))


def test_limits(plan_of):
    with pytest.raises(LimitExceeded, match=r"item 1 \('b'\): fragments: 7 is over the limit max_fragments=6"):
        plan_of([ITEMS[3], ITEMS[1]], Limits(max_fragments=6))
    with pytest.raises(LimitExceeded, match="max_rows=1"):
        plan_of(ITEMS, Limits(max_rows=1))
    with pytest.raises(LimitExceeded, match=r"item 1 \('b'\): token rows: 6 is over the limit max_rows=1$"):
        plan_of(ITEMS, Limits(max_rows=1))
    with pytest.raises(
        LimitExceeded, match=r"^token rows of the items without a tree: 2 is over the limit max_rows=1$"
    ):
        plan_of([TextItem(id=name, text=f"{name}7" * 7) for name in "abcdefgh"], Limits(max_rows=1))
    with pytest.raises(LimitExceeded, match="max_fragments"):
        plan_of([VideoItem(id="long", duration_s=1e300)])


@pytest.mark.parametrize("node_encoding", ["separate", "contextual"])
def test_rows_become_wider_where_they_would_be_too_many(node_encoding, plan_of, wordpiece_file, counter):
    """As for a TensorRT plan, which takes few rows and any width: the same trees, up to what the widest rows hold."""
    tokenizer = EncoderTokenizer(wordpiece_file, 256)
    items = [TextItem(id=f"{n}", text=f"judo {n} was played in japan. kano {n} was in japan.") for n in range(40)]

    def trees(limits):
        rows, plan = plan_of(items, limits, tokenizer=tokenizer, node_encoding=node_encoding)
        made = plan.trees(items, encoded(rows), revision=REVISION, reader=counter.revision)
        return rows.input_ids.shape, [encode_tree(tree) for tree in made]

    (rows, width), free = trees(Limits())
    assert width == 64
    for most in (rows - 1, rows // 3):
        (fewer, wider), bound = trees(Limits(max_rows=most))
        assert fewer <= most
        assert wider in (128, 256)
        if node_encoding == "separate":
            assert bound == free
    with pytest.raises(LimitExceeded, match="max_rows=2"):
        trees(Limits(max_rows=2))


def test_a_bad_tree_is_refused_with_its_place(plan_of, counter):
    with pytest.raises(InvalidItem, match=r"item 1 \('a'\), field 'tree'"):
        plan_of([ITEMS[3], msgspec.structs.replace(ITEMS[0], tree=b"no tree")])
    with pytest.raises(InvalidItem, match="field 'tree'"):
        plan_of([msgspec.structs.replace(ITEMS[0], tree=b"")])
    blob = encode_tree(trees_of(ITEMS[:1], plan_of, counter)[0])
    with pytest.raises(EncoderMismatch, match=f"{REVISION}.*{'cd' * 8}"):
        plan_of([msgspec.structs.replace(ITEMS[0], tree=blob)], revision="cd" * 8)


def test_a_tree_of_another_dimension_is_refused_with_its_place(plan_of, counter):
    (tree,) = trees_of(ITEMS[:1], plan_of, counter)
    narrow = encode_tree(replace(tree, vectors=np.ascontiguousarray(tree.vectors[:, :4])))
    items = [ITEMS[3], msgspec.structs.replace(ITEMS[0], tree=narrow)]
    rows, plan = plan_of(items)
    words = r"item 1 \('a'\), field 'tree': its vectors have 4 dimensions, this server's have 6"
    with pytest.raises(InvalidItem, match=words):
        plan.trees(items, encoded(rows), revision=REVISION)


def test_a_plan_of_other_items_is_refused(plan_of):
    rows, plan = plan_of(ITEMS[:2])
    with pytest.raises(InvalidRequest, match="1 items"):
        plan.trees(ITEMS[:1], encoded(rows), revision=REVISION)
    with pytest.raises(InvalidRequest, match="outside"):
        plan.trees(ITEMS[:2], encoded(rows)[:, :1], revision=REVISION)
    with pytest.raises(InvalidRequest, match="windows"):
        plan.item_vectors(ITEMS[:2], np.ones((2, 3), np.float32))


@pytest.fixture
def indexed(plan_of, counter):
    trees = trees_of(ITEMS, plan_of, counter)
    return [msgspec.structs.replace(item, tree=encode_tree(tree)) for item, tree in zip(ITEMS, trees, strict=True)]


def read_indexed(items, counter, **changes):
    parts = {"revision": REVISION, "dimension": 6, "counter": counter, "limits": Limits()}
    return indexed_trees(items, **{**parts, **changes})


def test_trees_without_a_plan_are_those_of_a_plan(indexed, plan_of, counter):
    planned = trees_of(indexed, plan_of, counter)
    assert [encode_tree(one) for one in read_indexed(indexed, counter)] == [encode_tree(one) for one in planned]


def test_trees_without_a_plan_are_counted_again_for_another_reader(indexed, plan_of, byte_level_file):
    other = TokenCounter(byte_level_file)
    planned = plan_of(ITEMS, counter=other)[1]
    trees = read_indexed(indexed, other)
    assert [one.tokens.tolist() for one in trees] == [one.tokens.tolist() for one in planned.items]
    assert {one.reader for one in trees} == {other.revision}


def test_trees_without_a_plan_meet_the_same_refusals(indexed, counter):
    with pytest.raises(LimitExceeded, match=r"item 1 \('b'\): fragments: 7 is over the limit max_fragments=6"):
        read_indexed([indexed[3], indexed[1]], counter, limits=Limits(max_fragments=6))
    with pytest.raises(InvalidItem, match=r"item 0 \('a'\), field 'tree': .* 6 dimensions, this server's have 4"):
        read_indexed(indexed, counter, dimension=4)
    with pytest.raises(EncoderMismatch, match=f"{REVISION}.*{'cd' * 8}"):
        read_indexed(indexed, counter, revision="cd" * 8)
    with pytest.raises(InvalidItem, match=r"item 1 \('d'\), field 'tree': is missing: 'compress' encodes"):
        read_indexed([indexed[0], ITEMS[3]], counter)
