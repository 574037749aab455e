"""What is encoded for an item, and how vectors come together again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.encoding import (
    count_tokens,
    fragment_bodies,
    item_vectors,
    node_vectors,
    plan_items,
    plan_nodes,
    unit,
)
from canopy_backend.fragments import fragment, render
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, ImageItem, TableItem, TextItem, VideoItem
from canopy_backend.templates import node_text

words = st.sampled_from(["judo", "was", "played", "Kano", "x" * 9, "é", "中文", "3.5", "[SEP]"])
sentences = st.lists(words, min_size=1, max_size=9).map(lambda parts: " ".join(parts) + ".")
texts = st.lists(sentences, max_size=12).map(" ".join) | st.text(st.sampled_from("aJ .!?\n\r。中\u0301🎉"), max_size=60)
titles = st.sampled_from(["", "Judo", "Judo in\nJapan", "t" * 40])


@st.composite
def items(draw):
    kind = draw(st.sampled_from(["text", "table", "video", "image"]))
    title = draw(titles)
    if kind == "text":
        return TextItem(id="a", title=title, text=draw(texts))
    if kind == "table":
        rows = draw(st.lists(st.lists(st.text("ab|\n 中", max_size=8), max_size=2), max_size=12))
        return TableItem(id="a", title=title, columns=["x", "y"], rows=rows, caption=draw(st.sampled_from(["", "c"])))
    if kind == "video":
        times = draw(st.lists(st.integers(0, 200), max_size=6))
        return VideoItem(id="a", title=title, duration_s=200, segments=[Cue(t, t + 40, f"judo {t}") for t in times])
    return ImageItem(id="a", title=title, caption=draw(texts))


def planned(item, tokenizer):
    fragments = fragment(item)
    h = balanced(len(fragments))
    return fragments, h, plan_nodes(item, fragments, h, tokenizer)


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
@given(item=items())
@settings(deadline=None, max_examples=40)
def test_a_node_is_encoded_exactly_when_its_text_fits(kind, item, tokenizer, byte_tokenizer):
    tokenizer = tokenizer if kind == "wordpiece" else byte_tokenizer
    fragments, h, plan = planned(item, tokenizer)
    runs = zip(h.first.tolist(), h.last.tolist(), strict=True)
    whole = tokenizer.encode([node_text(item, render(item, fragments, first, last)) for first, last in runs])
    assert all(len(sequence) <= tokenizer.window for sequence in plan.sequences)
    assert plan.layouts is None
    assert plan.sequence.tolist() == list(range(len(plan.sequences)))
    assert (plan.weights >= 1).all()
    assert (np.diff(plan.nodes) >= 0).all()
    by_node = {}
    for node, sequence in zip(plan.nodes.tolist(), plan.sequences, strict=True):
        by_node.setdefault(node, []).append(sequence)
    for node, expected in enumerate(whole):
        if len(expected) <= tokenizer.window:
            assert by_node[node] == [expected]
        elif h.is_leaf[node]:
            assert len(by_node[node]) >= 2
        else:
            assert node not in by_node


@given(items())
@settings(deadline=None, max_examples=60)
def test_fragments_and_prefix_are_all_of_a_root(item):
    fragments = fragment(item)
    prefix, bodies = fragment_bodies(item, fragments)
    text = node_text(item, render(item, fragments, 0, len(fragments)))
    assert text.startswith(prefix)
    if item.modality != "video":
        glue = "\n" if item.modality == "table" else ""
        assert text == "\n".join(part for part in (prefix, glue.join(bodies)) if part)


def test_a_leaf_longer_than_the_window_is_cut_into_windows_that_lose_nothing(tokenizer):
    item = TextItem(id="a", title="Title", text="judo was " * 50)
    _, h, plan = planned(item, tokenizer)
    assert h.size == 1
    title, body = tokenizer.encode_plain(["Title", item.text])
    assert all(sequence[1 : 1 + len(title)] == title for sequence in plan.sequences)
    assert [token for sequence in plan.sequences for token in sequence[1 + len(title) : -1]] == body
    assert plan.weights.sum() == len(body) == 100


def test_a_title_longer_than_the_window_is_not_lost(tokenizer):
    item = TextItem(id="a", title="judo was " * 30, text="Kano played.")
    _, _, plan = planned(item, tokenizer)
    title, body = tokenizer.encode_plain([item.title, item.text])
    assert [token for sequence in plan.sequences for token in sequence[1:-1]] == title + body
    assert plan.weights.sum() == len(title) + len(body)


def test_an_empty_item_is_one_short_sequence(tokenizer):
    for item in (TextItem(id="a", text=""), ImageItem(id="a"), VideoItem(id="a", duration_s=5)):
        _, _, plan = planned(item, tokenizer)
        assert plan.sequences == [[*tokenizer.head, *tokenizer.tail]]
        assert plan.weights.tolist() == [1]


def reference_vectors(h, nodes, weights, embeddings):
    """Pooled from the leaves up, node by node, in double precision."""

    def pooled(parts):
        total = sum(weight * vector for weight, vector in parts)
        return total / np.linalg.norm(total)

    embeddings = embeddings.astype(np.float64)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    given_to, mass, vectors = {}, {}, {}
    for node, weight, vector in zip(nodes.tolist(), weights.tolist(), embeddings, strict=True):
        given_to.setdefault(node, []).append((weight, vector))
    for node in reversed(range(h.size)):
        parts = given_to.get(node) or [(mass[child], vectors[child]) for child in h.children(node)]
        mass[node] = sum(weight for weight, _ in parts)
        vectors[node] = parts[0][1] if len(parts) == 1 else pooled(parts)
    return np.stack([vectors[node] for node in range(h.size)])


@given(st.integers(1, 40), st.integers(2, 3), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_long_nodes_are_the_mean_of_their_children(n, branching, seed):
    rng = np.random.default_rng(seed)
    h = balanced(n, branching)
    # A node that is not encoded has no ancestor that is: long texts hold longer ones.
    encoded = h.is_leaf | (h.depth >= rng.integers(0, h.height + 2))
    nodes = np.repeat(np.arange(h.size), np.where(encoded, np.where(h.is_leaf, rng.integers(1, 4, h.size), 1), 0))
    embeddings = rng.normal(size=(len(nodes), 8)).astype(np.float32)
    weights = rng.integers(1, 60, len(nodes)).astype(np.int32)
    vectors = node_vectors(h, nodes.astype(np.int32), weights, embeddings)
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, reference_vectors(h, nodes, weights, embeddings), atol=2e-3)
    single = np.flatnonzero(np.bincount(nodes, minlength=h.size) == 1)
    rows = np.searchsorted(nodes, single)
    assert np.array_equal(vectors[single], unit(embeddings)[rows].astype(np.float16))


def test_vectors_are_brought_to_unit_length_before_they_are_pooled():
    embeddings = np.array([[30, 0], [0, 4]], np.float32)
    vectors = node_vectors(balanced(2), np.array([1, 2], np.int32), np.array([1, 1], np.int32), embeddings)
    np.testing.assert_allclose(vectors, [[0.5**0.5, 0.5**0.5], [1, 0], [0, 1]], atol=1e-3)


def test_vectors_that_cancel_out_stay_finite():
    embeddings = np.array([[1, 0], [-1, 0]], np.float32)
    vectors = node_vectors(balanced(2), np.array([1, 2], np.int32), np.array([5, 5], np.int32), embeddings)
    assert vectors.tolist() == [[0, 0], [1, 0], [-1, 0]]


def test_whole_items_are_windows_and_their_mean(tokenizer):
    short, long = TextItem(id="a", title="Judo", text="was"), TextItem(id="b", text="judo " * 70)
    plan = plan_items([short, long], tokenizer)
    assert plan.counts.tolist() == [1, 3]
    assert plan.weights.tolist() == [2, 30, 30, 10]
    embeddings = np.eye(4, dtype=np.float32)
    vectors = item_vectors(plan.counts, plan.weights, embeddings)
    assert vectors.dtype == np.float32
    assert vectors[0].tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(vectors[1], np.array([0, 3, 3, 1]) / np.sqrt(19), rtol=1e-6)


def test_reader_tokens_are_counted_a_fragment(counter):
    table = TableItem(id="a", title="cup", columns=["gold"], rows=[["judo"], ["in japan"]])
    assert count_tokens(table, fragment(table), counter).tolist() == [3, 4, 1 + 3 + 5]
    text = TextItem(id="a", title="", text="Judo was played. Kano was in Japan.")
    counts = count_tokens(text, fragment(text), counter)
    assert counts.dtype == np.int32
    assert counts[-1] == 0
    assert counts.sum() == counter.count([text.text])[0]
