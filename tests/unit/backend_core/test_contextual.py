"""Late pooling: how leaves are laid into windows, and what each node's vector is made of."""

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.contextual import Window, lay, node_sums, reach
from canopy_backend.encoding import fragment_bodies, node_vectors, plan_nodes
from canopy_backend.errors import InvalidRequest
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, ImageItem, TableItem, TextItem, VideoItem
from canopy_backend.limits import Limits
from canopy_backend.packing import TOKENS_A_SLOT, longest, pack, row_width
from canopy_backend.plan import RequestPlan, plan_request
from canopy_backend.templates import item_text
from canopy_backend.tree import encode_tree

REVISION = "ab" * 8
DIMENSION = 6

ITEMS = [
    TextItem(id="a", title="Judo", text="Kano was in Japan. Judo was played. The cup was gold. " * 9),
    TableItem(id="b", title="cup", columns=["x", "y"], rows=[[str(row), "gold"] for row in range(7)]),
    VideoItem(id="c", duration_s=150.0, segments=[Cue(0, 10, "judo was played"), Cue(70, 80, "gold")]),
    ImageItem(id="d", caption="judo"),
    TextItem(id="e", title="Judo", text="judo was " * 90),
    TextItem(id="f", title="判定", text="柔道は日本で始まった。嘉納治五郎がつくった。金の杯。"),
    TextItem(id="g", text=""),
]


def numbered(*lengths):
    """Leaves whose tokens all differ: 100, 101, .. in the first, 200, .. in the second."""
    return [[100 * (place + 1) + token for token in range(length)] for place, length in enumerate(lengths)]


def lengths_of(windows):
    return [[(place, len(piece)) for place, piece in window.pieces] for window in windows]


def table_of(token):
    """A vector for each token id, the same in every run."""
    seed = int.from_bytes(hashlib.sha256(str(token).encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION)


def states(sequence, mixing=0.0):
    """A stand-in for the encoder: each token's own vector, and a share of the mean of all it sees."""
    own = np.stack([table_of(token) for token in sequence])
    return own + mixing * own.mean(axis=0)


def answer(rows, mixing=0.0):
    """What the node graph gives for rows of that encoder: means of slots, float32 ``[R, S, D]``."""
    n_rows, width = rows.input_ids.shape
    out = np.zeros((n_rows, width // 4, DIMENSION), np.float32)
    for row in range(n_rows):
        for segment in range(1, int(rows.segment_ids[row].max()) + 1):
            mine = np.flatnonzero(rows.segment_ids[row] == segment)
            seen = states(rows.input_ids[row, mine].tolist(), mixing)
            for slot in np.unique(rows.slot_ids[row, mine]):
                out[row, slot - 1] = seen[rows.slot_ids[row, mine] == slot].mean(axis=0)
    return out


def planned(item, tokenizer):
    fragments = fragment(item)
    h = balanced(len(fragments))
    return fragments, h, plan_nodes(item, fragments, h, tokenizer, "contextual")


def vectors_of(item, tokenizer, mixing=0.0):
    _, h, plan = planned(item, tokenizer)
    rows = pack(plan.sequences, row_width(longest(plan.sequences, plan.layouts)), plan.layouts)
    row, slot = rows.slots.T
    return h, node_vectors(h, plan.nodes, plan.weights, answer(rows, mixing)[row, slot], "contextual")


def unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.fixture(scope="module")
def plan_of(tokenizer, counter):
    def call(items, node_encoding="contextual", limits=None):
        return plan_request(
            items,
            tokenizer=tokenizer,
            counter=counter,
            revision=REVISION,
            limits=limits or Limits(),
            node_encoding=node_encoding,
        )

    return call


def trees_of(items, plan_of, counter):
    rows, plan = plan_of(items)
    read = RequestPlan.from_bytes(plan.to_bytes())
    return read.trees(items, answer(rows, 0.5), revision=REVISION, reader=counter.revision)


# --- windows: 32 tokens, of which 30 are text, and at most 8 parts


def test_leaves_share_a_window_until_one_does_not_fit(tokenizer):
    assert lengths_of(lay([], numbered(10, 10, 10), tokenizer)) == [[(0, 10), (1, 10), (2, 10)]]
    assert lengths_of(lay([], numbered(10, 10, 11, 5), tokenizer)) == [[(0, 10), (1, 10)], [(2, 11), (3, 5)]]


def test_every_window_begins_with_a_short_prefix(tokenizer):
    prefix = [7, 8, 9]
    windows = lay(prefix, numbered(20, 20, 5), tokenizer)
    assert [window.lead for window in windows] == [prefix, prefix]
    assert lengths_of(windows) == [[(0, 20)], [(1, 20), (2, 5)]]
    first = windows[0].sequence(tokenizer)
    assert first == [*tokenizer.head, *prefix, *range(100, 120), *tokenizer.tail]
    assert windows[0].layout(tokenizer) == [0] * 4 + [1] * 20 + [0]


def test_a_prefix_of_more_than_half_a_window_stands_once(tokenizer):
    short, long = list(range(16)), list(range(40))
    assert [window.lead for window in lay(short, numbered(10, 10), tokenizer)] == [short, []]
    windows = lay(long, numbered(10, 15, 12), tokenizer)
    assert [window.lead for window in windows] == [long[:30], long[30:], []]
    assert lengths_of(windows) == [[], [(0, 10)], [(1, 15), (2, 12)]]


def test_only_a_leaf_longer_than_a_window_is_cut(tokenizer):
    windows = lay([7, 8], numbered(5, 70, 12, 3), tokenizer)
    assert lengths_of(windows) == [[(0, 5)], [(1, 28)], [(1, 28)], [(1, 14), (2, 12)], [(3, 3)]]
    assert lengths_of(lay([7, 8], numbered(28, 28), tokenizer)) == [[(0, 28)], [(1, 28)]]


def test_leaves_of_few_tokens_end_a_window_by_their_slots(tokenizer):
    windows = lay([], numbered(*[2] * 20), tokenizer)
    assert [len(window.pieces) for window in windows] == [7, 7, 6]


def test_a_leaf_without_tokens_has_no_piece(tokenizer):
    assert lengths_of(lay([7], numbered(0, 4, 0, 4, 0), tokenizer)) == [[(1, 4), (3, 4)]]
    assert lay([7], [[], []], tokenizer) == [Window([7])]
    assert lay([], [[]], tokenizer) == [Window([])]


@given(n_prefix=st.integers(0, 70), sizes=st.lists(st.integers(0, 70), min_size=1, max_size=30))
@settings(deadline=None, max_examples=200)
def test_every_token_of_every_leaf_is_in_exactly_one_part(n_prefix, sizes, tokenizer):
    leaves = numbered(*sizes)
    prefix = list(range(n_prefix))
    windows = lay(prefix, leaves, tokenizer)
    assert [(place, token) for window in windows for place, piece in window.pieces for token in piece] == [
        (place, token) for place, leaf in enumerate(leaves) for token in leaf
    ]
    leads = [token for window in windows for token in window.lead]
    assert leads == (prefix * len(windows) if tokenizer.repeats(prefix) else prefix)
    for window in windows:
        sequence, layout = window.sequence(tokenizer), window.layout(tokenizer)
        assert len(sequence) == len(layout) <= tokenizer.window
        assert TOKENS_A_SLOT * (1 + len(window.pieces)) <= tokenizer.window
        assert all(piece for _, piece in window.pieces)
    whole = [place for place, size in enumerate(sizes) if 0 < size <= tokenizer.room - len(windows[-1].lead)]
    touched = [place for window in windows for place, _ in window.pieces]
    assert all(touched.count(place) == 1 for place in whole)


# --- plans


@given(
    sentences=st.lists(st.sampled_from([*"ab", "judo", "kano was", "x" * 40]), max_size=25),
    title=st.sampled_from(["", "Judo cup"]),
)
@settings(deadline=None, max_examples=60)
def test_a_plan_names_every_token_of_the_item_once(sentences, title, tokenizer):
    item = TextItem(id="a", title=title, text=" ".join(f"{one.capitalize()}." for one in sentences))
    fragments, h, plan = planned(item, tokenizer)
    _, bodies = fragment_bodies(item, fragments)
    found = [[] for _ in range(len(fragments))]
    line = 0
    for sequence, layout in zip(plan.sequences, plan.layouts, strict=True):
        for part in range(max(layout) + 1):
            tokens = [token for token, mine in zip(sequence, layout, strict=True) if mine == part]
            assert plan.weights[line] == len(tokens)
            node = int(plan.nodes[line])
            assert (node == -1) == (part == 0)
            if part:
                assert h.is_leaf[node]
                found[h.first[node]] += tokens
            line += 1
    assert line == len(plan.nodes)
    assert found == tokenizer.encode_plain(bodies)
    assert np.array_equal(plan.sequence, np.repeat(np.arange(len(plan.sequences)), np.bincount(plan.sequence)))


def test_a_table_repeats_its_header_in_every_window(tokenizer):
    item = TableItem(id="a", title="cup", columns=["x", "y"], rows=[[f"gold {row}", "kano"] for row in range(9)])
    _, h, plan = planned(item, tokenizer)
    (header,) = tokenizer.encode_plain(["cup\n| x | y |\n| --- | --- |\n"])
    assert len(plan.sequences) > 2
    assert all(sequence[1 : 1 + len(header)] == header for sequence in plan.sequences)
    assert plan.weights[plan.nodes < 0].tolist() == [len(header) + 2] * len(plan.sequences)
    assert h.first[plan.nodes[plan.nodes >= 0]].tolist() == list(range(9))


def test_lines_of_a_table_are_kept_apart_where_the_tokenizer_sees_line_breaks(byte_tokenizer):
    item = TableItem(id="a", columns=["x"], rows=[["a"], ["b"]])
    _, _, plan = planned(item, byte_tokenizer)
    assert plan.sequences == byte_tokenizer.encode([item_text(item)])


# --- vectors


@pytest.mark.parametrize("item", [ITEMS[3], TextItem(id="x", title="cup", text="Judo was played. Kano. In Japan.")])
def test_the_root_of_a_one_window_item_is_the_mean_of_its_text(item, tokenizer):
    h, vectors = vectors_of(item, tokenizer, mixing=0.7)
    (sequence,) = tokenizer.encode([item_text(item)])
    np.testing.assert_allclose(vectors[0], unit(states(sequence, 0.7).mean(axis=0)), atol=2e-3)
    if h.size > 1:
        (title,) = tokenizer.encode_plain(["cup"])
        (first,) = tokenizer.encode_plain(["Judo was played. "])
        seen = states(sequence, 0.7)
        chosen = [*range(1 + len(title) + len(first)), len(sequence) - 1]
        leaf = int(np.flatnonzero(h.is_leaf & (h.first == 0))[0])
        np.testing.assert_allclose(vectors[leaf], unit(seen[chosen].sum(axis=0)), atol=2e-3)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_nodes_are_the_sum_of_their_tokens_and_the_mean_context(item, tokenizer):
    """Window by window, node by node, straight from the definition."""
    mixing = 0.5
    fragments, h, plan = planned(item, tokenizer)
    _, vectors = vectors_of(item, tokenizer, mixing)
    _, bodies = fragment_bodies(item, fragments)
    contexts, pieces = [], []  # (window, sum) and (fragment, window, sum)
    line = 0
    for window, (sequence, layout) in enumerate(zip(plan.sequences, plan.layouts, strict=True)):
        seen = states(sequence, mixing)
        for part in range(max(layout) + 1):
            total = seen[[place for place, mine in enumerate(layout) if mine == part]].sum(axis=0)
            if part:
                pieces.append((int(h.first[plan.nodes[line]]), window, total))
            else:
                contexts.append(total)
            line += 1
    bare = set(range(len(contexts))) - {window for _, window, _ in pieces}
    for node in range(h.size):
        own = [(window, total) for place, window, total in pieces if h.first[node] <= place < h.last[node]]
        windows = {window for window, _ in own}
        if not own and pieces:
            before = [window for place, window, _ in pieces if place < h.first[node]]
            windows = {before[-1] if before else pieces[0][1]}
        around = np.mean([contexts[window] for window in sorted(windows | bare)], axis=0)
        expected = unit(sum((total for _, total in own), around))
        np.testing.assert_allclose(vectors[node], expected, atol=2e-3)
    assert np.isfinite(vectors).all()
    assert len(bodies) == len(fragments)


def test_a_silent_segment_has_the_vector_of_its_window_s_context(tokenizer):
    item = VideoItem(id="v", title="cup", duration_s=120.0, segments=[Cue(35, 40, "judo was played")])
    h, vectors = vectors_of(item, tokenizer)
    leaves = {int(h.first[node]): vectors[node] for node in np.flatnonzero(h.is_leaf)}
    (sequence,) = tokenizer.encode(["cup"])
    context = unit(states(sequence).sum(axis=0))
    for place in (0, 2, 3):
        np.testing.assert_allclose(leaves[place], context, atol=2e-3)
    # A node whose words are all in one child has that child's vector, to the last bit.
    left = int(np.flatnonzero((h.first == 0) & (h.last == 2))[0])
    assert np.array_equal(vectors[left], leaves[1])
    assert np.array_equal(vectors[0], leaves[1])


def test_a_prefix_longer_than_half_a_window_is_in_every_node(tokenizer):
    item = TextItem(id="a", title="judo was " * 20, text="Kano played. " * 14)
    _, h, plan = planned(item, tokenizer)
    found = reach(h, plan.nodes)
    assert found.shared == 1
    assert len(plan.sequences) == 4
    assert found.windows[0].tolist() == [1, 4]


def test_sums_by_hand():
    h = balanced(3)  # nodes: root, [0,2), leaf 2, leaf 0, leaf 1
    nodes = np.array([-1, 3, 4, -1, 4, 2], np.int32)
    weights = np.array([2, 5, 3, 4, 1, 6], np.int32)
    means = np.eye(6, dtype=np.float32)
    assert node_sums(h, nodes, weights, means).tolist() == [
        [1, 5, 3, 2, 1, 6],
        [1, 5, 3, 2, 1, 0],
        [0, 0, 0, 4, 0, 6],
        [2, 5, 0, 0, 0, 0],
        [1, 0, 3, 2, 1, 0],
    ]
    found = reach(h, nodes)
    assert found.pieces.tolist() == [[0, 4], [0, 3], [3, 4], [0, 1], [1, 3]]
    assert found.windows.tolist() == [[0, 2], [0, 2], [1, 2], [0, 1], [0, 2]]
    assert found.shared == 0


# --- packed rows


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=40))
@settings(deadline=None, max_examples=80)
def test_every_part_has_a_slot_of_its_own(shapes):
    sequences = [[1000 * (place + 1) + token for token in range(size)] for place, (size, _) in enumerate(shapes)]
    layouts = [[token * min(parts, size) // size for token in range(size)] for size, parts in shapes]
    rows = pack(sequences, 64, layouts)
    expected = [
        (token, part) for sequence, layout in zip(sequences, layouts, strict=True)
        for token, part in zip(sequence, layout, strict=True)
    ]  # fmt: skip
    found, line = [], 0
    for layout in layouts:
        for part in range(max(layout) + 1):
            row, slot = rows.slots[line].tolist()
            assert 0 <= slot < 64 // TOKENS_A_SLOT
            mine = rows.slot_ids[row] == slot + 1
            assert len(set(rows.segment_ids[row][mine].tolist())) == 1
            found += [(token, part) for token in rows.input_ids[row][mine].tolist()]
            line += 1
    assert found == expected
    assert line == len(rows.slots) == len({tuple(slot) for slot in rows.slots.tolist()})
    assert np.array_equal(rows.slot_ids > 0, rows.segment_ids > 0)


def test_a_sequence_of_many_parts_takes_the_tokens_of_its_slots():
    sequence, layout = list(range(1, 11)), list(range(10))
    assert longest([sequence], [layout]) == 40
    assert pack([sequence] * 2, 64, [layout] * 2).input_ids.shape == (2, 64)
    assert pack([sequence] * 2, 64).input_ids.shape == (1, 64)
    with pytest.raises(ValueError, match="rows of 32 tokens"):
        pack([sequence], 32, [layout])


def test_separate_rows_have_their_segments_as_slots(plan_of):
    rows, plan = plan_of(ITEMS, "separate")
    assert np.array_equal(rows.slot_ids, rows.segment_ids)
    assert plan.node_encoding == "separate"
    assert (np.concatenate([item.parts for item in plan.items]) >= 0).all()


# --- requests


@given(order=st.permutations(range(len(ITEMS))), size=st.integers(1, len(ITEMS)))
@settings(deadline=None, max_examples=20)
def test_an_item_has_the_same_tree_in_any_company(order, size, plan_of, counter):
    alone = [encode_tree(trees_of([item], plan_of, counter)[0]) for item in ITEMS]
    chosen = order[:size]
    together = trees_of([ITEMS[place] for place in chosen], plan_of, counter)
    assert [encode_tree(tree) for tree in together] == [alone[place] for place in chosen]


def test_a_tree_from_the_index_gives_what_encoding_gives(plan_of, counter):
    cold = [encode_tree(tree) for tree in trees_of(ITEMS, plan_of, counter)]
    warm = [msgspec.structs.replace(item, tree=tree) for item, tree in zip(ITEMS, cold, strict=True)]
    for items in (warm, [*warm[:3], *ITEMS[3:]]):
        assert [encode_tree(tree) for tree in trees_of(items, plan_of, counter)] == cold
    rows, plan = plan_of(warm)
    assert not any(item.cold for item in plan.items)
    assert rows.slot_ids.shape == (1, 64)


def test_a_plan_comes_back_with_its_node_encoding(plan_of):
    for encoding in ("separate", "contextual"):
        _, plan = plan_of(ITEMS, encoding)
        data = plan.to_bytes()
        read = RequestPlan.from_bytes(data)
        assert read.node_encoding == encoding
        assert read.to_bytes() == data
        for before, after in zip(plan.items, read.items, strict=True):
            assert np.array_equal(before.parts, after.parts)
    other = bytearray(data)
    other[8] = 7
    with pytest.raises(InvalidRequest, match="names no node encoding"):
        RequestPlan.from_bytes(bytes(other))


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_broken_plan_is_refused_or_still_a_plan(data, plan_of):
    items = ITEMS[1:4]
    rows, plan = plan_of(items)
    embeddings = answer(rows)
    values = bytearray(plan.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        values[data.draw(st.integers(0, 70) | st.integers(0, len(values) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.just(len(values)) | st.integers(0, len(values)))
    try:
        trees = RequestPlan.from_bytes(bytes(values[:kept])).trees(items, embeddings, revision=REVISION)
    except InvalidRequest:
        return
    assert all(len(tree.vectors) == tree.hierarchy.size for tree in trees)


def test_equal_items_are_encoded_once_and_equal_tokens_with_other_leaves_twice(plan_of):
    whole = TextItem(id="a", text="judo was\nplayed in japan")
    rows, _ = plan_of([whole])
    twins, plan = plan_of([whole, msgspec.structs.replace(whole, id="twin")])
    assert np.array_equal(rows.input_ids, twins.input_ids)
    assert np.array_equal(*(item.parts for item in plan.items))
    table = TableItem(id="t", columns=["x"], rows=[["judo"], ["cup"]])
    text = TextItem(id="u", text=item_text(table))
    rows, plan = plan_of([table, text])
    assert not np.array_equal(*(item.parts for item in plan.items))
    assert len(np.unique(rows.segment_ids)) == 3
