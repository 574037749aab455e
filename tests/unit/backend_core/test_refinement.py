"""Refinement against a queue written from the definition, its laws, and recorded decisions."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.evidence import decisions
from canopy_backend.hierarchy import balanced
from canopy_backend.refinement import refine, refine_many, score, score_many

# Few distinct values, so that parents and children often score the same.
tied_scores = st.sampled_from(np.array([-0.5, 0.0, 0.1, 0.1 + 1e-8, 0.3], np.float32).tolist())


@st.composite
def scored_trees(draw):
    """A tree of any shape as a breadth-first parent array, with scores."""
    size = draw(st.integers(1, 40))
    parent = [-1, *sorted(draw(st.integers(0, size - 1)) % place for place in range(1, size))]
    # Sorting may put a parent behind its child; pull it in front.
    parent = [p if p < place else place - 1 for place, p in enumerate(parent)]
    return parent, draw(st.lists(tied_scores, min_size=size, max_size=size))


@st.composite
def scored_hierarchies(draw):
    n = draw(st.integers(1, 60) | st.integers(1, 3000))
    h = balanced(n, draw(st.integers(2, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.integers(0, draw(st.integers(1, 30)), h.size)
    return h, (values / 8).astype(np.float32)


def walk(parent, scores, *, newest_first=False):
    """Kept nodes, by the queue of the definition."""
    children = [[] for _ in parent]
    for node, above in enumerate(parent):
        if above >= 0:
            children[above].append(node)
    queue, kept = deque([0]), []
    while queue:
        node = queue.pop() if newest_first else queue.popleft()
        qualified = [child for child in children[node] if scores[child] >= scores[node]]
        queue.extend(qualified)
        if not qualified:
            kept.append(node)
    return sorted(kept)


def joined(trees):
    offsets = np.cumsum([0, *(len(parent) for parent, _ in trees)]).astype(np.int32)
    parents = np.concatenate([parent for parent, _ in trees]).astype(np.int32)
    return parents, offsets, np.concatenate([scores for _, scores in trees]).astype(np.float32)


@given(st.lists(scored_trees(), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_many_trees_at_once_equal_the_queue_on_each(trees):
    parents, offsets, scores = joined(trees)
    kept = refine_many(parents, offsets, scores)
    for (parent, _), start, end in zip(trees, offsets[:-1], offsets[1:], strict=True):
        assert np.flatnonzero(kept[start:end]).tolist() == walk(parent, scores[start:end])


@given(scored_hierarchies())
@settings(deadline=None, max_examples=60)
def test_laws(case):
    h, scores = case
    kept = refine(h, scores)
    assert kept.dtype == np.int32
    assert len(kept) >= 1
    # In source order, and none inside another.
    assert (h.first[kept][1:] >= h.last[kept][:-1]).all()
    # The order of visits is of no importance.
    expected = walk(h.parent.tolist(), scores)
    assert sorted(kept.tolist()) == expected == walk(h.parent.tolist(), scores, newest_first=True)


@given(scored_hierarchies(), st.permutations(range(3)))
@settings(deadline=None, max_examples=30)
def test_an_item_does_not_depend_on_its_neighbours(case, order):
    h, scores = case
    others = [(balanced(7).parent, np.linspace(0, 1, 13)), (balanced(1).parent, np.zeros(1))]
    trees = [(h.parent, scores), *others]
    parents, offsets, together = joined([trees[place] for place in order])
    kept = refine_many(parents, offsets, together)
    start = offsets[order.index(0)]
    alone = refine_many(h.parent, np.array([0, h.size], np.int32), scores)
    assert np.array_equal(kept[start : start + h.size], alone)


def test_equality_descends_and_a_hair_less_does_not():
    h = balanced(2)
    assert refine(h, np.array([0.5, 0.5, 0.4], np.float32)).tolist() == [1]
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert refine(h, np.array([0.5, below, 0.4], np.float32)).tolist() == [0]


def test_all_equal_scores_keep_every_leaf():
    h = balanced(1000)
    assert refine(h, np.zeros(h.size, np.float32)).tolist() == sorted(
        np.flatnonzero(h.is_leaf).tolist(), key=lambda node: h.first[node]
    )


def test_tables_kept_whole_keep_their_root_and_leave_others_alone():
    h = balanced(3)
    scores = np.zeros(h.size, np.float32)
    parents, offsets, together = joined([(h.parent, scores), (h.parent, scores)])
    whole = np.array([True, False])
    kept = refine_many(parents, offsets, together, whole)
    assert np.flatnonzero(kept).tolist() == [0, 7, 8, 9]
    assert refine(h, scores, keep_whole=True).tolist() == [0]


def test_a_chain_as_deep_as_it_is_long():
    parent = np.arange(-1, 499, dtype=np.int32)
    scores = np.arange(500, dtype=np.float32)
    assert np.flatnonzero(refine_many(parent, np.array([0, 500]), scores)).tolist() == [499]
    scores[200] = 0
    assert np.flatnonzero(refine_many(parent, np.array([0, 500]), scores)).tolist() == [199]


# Trees whose decisions were recorded: parents, scores, and the fragments under the kept nodes.
RECORDED = {
    "text, two sentences": ([-1, 0, 0], [0.4715, 0.2887, 0.489], [1]),
    "text, six sentences": (
        [-1, 0, 0, 1, 1, 2, 2, 3, 3, 5, 5],
        [0.3749, 0.4041, 0.3528, 0.3837, 0.3618, 0.3175, 0.2769, 0.3045, 0.3797, 0.3172, 0.3167],
        [0, 1, 2],
    ),
    "video, six segments": (
        [-1, 0, 0, 1, 1, 2, 2, 3, 3, 5, 5],
        [0.2367, 0.2738, 0.1876, 0.3297, 0.2138, 0.1754, 0.1963, 0.2973, 0.2761, 0.1261, 0.2007],
        [0, 1],
    ),
    "table, eleven rows": (
        [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 9, 9, 11, 11],
        [
            *[0.0762, 0.1366, 0.0572, 0.1239, 0.1326, 0.1059, 0.0373, 0.1263, 0.1584, 0.1226, 0.1509],
            *[0.1232, 0.1372, 0.0484, 0.1216, 0.1487, 0.1812, 0.1245, 0.1599, 0.1423, 0.1402],
        ],
        [0, 1, 2, 3, 4, 5],
    ),
    "text, five sentences": (
        [-1, 0, 0, 1, 1, 2, 2, 3, 3],
        [0.0733, 0.1401, 0.0135, 0.1521, 0.0618, 0.089, 0.0112, 0.1377, 0.1635],
        [1],
    ),
    "worked example, appendix G": ([-1, 0, 0, 1, 1, 2, 2], [0.5, 0.8, 0.7, 0.79, 0.1, 0.9, 0.2], [0, 1, 2]),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_decisions(name):
    parent, scores, fragments = RECORDED[name]
    h = balanced((len(parent) + 1) // 2)
    assert h.parent.tolist() == parent
    kept = refine(h, np.array(scores, np.float32))
    found = [place for node in kept for place in range(h.first[node], h.last[node])]
    assert found == fragments


def test_recorded_decisions_all_at_once():
    trees = [(parent, scores) for parent, scores, _ in RECORDED.values()]
    parents, offsets, scores = joined(trees)
    kept = refine_many(parents, offsets, scores)
    assert [int(part.sum()) for part in np.split(kept, offsets[1:-1])] == [1, 1, 1, 1, 1, 2]


def test_a_score_is_the_same_alone_and_among_others():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(203, 384)).astype(np.float16)
    vectors[100] = vectors[7]
    query = rng.normal(size=384).astype(np.float32)
    together = score(vectors, query)
    assert together.dtype == np.float32
    assert together[100] == together[7]
    assert all(score(vectors[place : place + 1], query)[0] == together[place] for place in (0, 7, 150, 202))
    np.testing.assert_allclose(together, vectors.astype(np.float64) @ query, rtol=1e-4, atol=1e-4)


def test_every_finite_float16_is_widened_exactly():
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    vectors = values[np.isfinite(values)].reshape(-1, 62)
    for place, axis in enumerate(np.eye(62, dtype=np.float32)):
        np.testing.assert_array_equal(score(vectors, axis), vectors[:, place].astype(np.float32))


@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_scores_do_not_depend_on_the_company(sizes, dimension, seed):
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(size=(size, dimension)).astype(np.float16) for size in sizes]
    query = rng.normal(size=dimension).astype(np.float32)
    query /= np.linalg.norm(query)
    together = score_many(vectors, query)
    assert together.tobytes() == b"".join(score(one, query).tobytes() for one in vectors)
    rows = np.concatenate(vectors)
    for place in {0, len(rows) // 2, len(rows) - 1}:
        assert score(rows[place : place + 1], query)[0] == together[place]
    np.testing.assert_allclose(together, rows.astype(np.float64) @ query, rtol=0, atol=2e-5)


@given(
    st.lists(st.integers(1, 1500), min_size=1, max_size=3),
    st.integers(2, 6),
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=40)
def test_what_the_walk_does_not_come_to_may_go_without_a_score(sizes, branching, kinds, seed):
    """Few distinct vectors, so that many nodes tie: the same are kept, and all that were compared have their score."""
    hierarchies = [balanced(size, branching) for size in sizes]
    rng = np.random.default_rng(seed)
    pool = rng.standard_normal((kinds, 16)).astype(np.float16)
    vectors = [pool[rng.integers(0, kinds, h.size)] for h in hierarchies]
    query = rng.standard_normal(16).astype(np.float32)
    every, parents = score_many(vectors, query), [h.parent for h in hierarchies]
    needed = score_many(vectors, query, parents)
    offsets = np.cumsum([0, *map(len, parents)]).astype(np.int32)
    kept = refine_many(np.concatenate(parents), offsets, every)
    assert np.array_equal(refine_many(np.concatenate(parents), offsets, needed), kept)
    for h, start, end in zip(hierarchies, offsets[:-1], offsets[1:], strict=True):
        one, whole = needed[start:end], every[start:end]
        assert np.array_equal(one[~np.isnan(one)], whole[~np.isnan(one)])
        nodes = np.flatnonzero(kept[start:end])
        assert decisions(h, one, nodes) == decisions(h, whole, nodes)


def test_a_long_chain_and_a_wide_root_are_scored_as_the_walk_goes():
    for parent in (np.arange(-1, 899, dtype=np.int32), np.r_[-1, np.zeros(899, np.int32)].astype(np.int32)):
        vectors = np.linspace(0.1, 1, 900, dtype=np.float16)[:, None]
        scores = score_many([vectors], np.ones(1, np.float32), [parent])
        assert np.array_equal(scores, vectors[:, 0].astype(np.float32))
    falling = score_many([vectors[::-1]], np.ones(1, np.float32), [np.arange(-1, 899, dtype=np.int32)])
    assert np.isnan(falling[256:]).all()
    assert not np.isnan(falling[:256]).any()
