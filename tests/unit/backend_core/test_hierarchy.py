"""Laws of balanced hierarchies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.hierarchy import balanced

sizes = st.integers(1, 3000) | st.integers(1, 40)
branchings = st.integers(2, 7)


def reference(n, branching):
    """Node by node, from the definition."""
    nodes = [(-1, 0, n, 0)]
    for place, (_, first, last, depth) in ((i, nodes[i]) for i in _growing(nodes)):
        size = last - first
        parts = min(size, branching) if size > 1 else 0
        for part in range(parts):
            width = size // parts + (part < size % parts)
            nodes.append((place, first, first + width, depth + 1))
            first += width
    return nodes


def _growing(items):
    place = 0
    while place < len(items):
        yield place
        place += 1


@given(st.integers(1, 300), branchings)
@settings(deadline=None, max_examples=60)
def test_is_the_tree_of_the_definition(n, branching):
    h = balanced(n, branching)
    built = np.stack([h.parent, h.first, h.last, h.depth], axis=1)
    assert built.tolist() == [list(node) for node in reference(n, branching)]


@given(sizes, branchings)
@settings(deadline=None, max_examples=60)
def test_children_partition_their_parent_larger_first(n, branching):
    h = balanced(n, branching)
    assert (np.diff(h.parent) >= 0).all()
    assert (np.diff(h.depth) >= 0).all()
    inner = np.flatnonzero(~h.is_leaf)
    for node in inner[:: max(1, len(inner) // 50)].tolist():
        children = list(h.children(node))
        assert (h.parent[children] == node).all()
        assert 2 <= len(children) <= branching
        assert h.first[children[0]] == h.first[node]
        assert h.last[children[-1]] == h.last[node]
        assert (h.first[children[1:]] == h.last[children[:-1]]).all()
        widths = (h.last - h.first)[children]
        assert (np.diff(widths) <= 0).all()
        assert widths[0] - widths[-1] <= 1


@given(sizes)
@settings(deadline=None, max_examples=60)
def test_two_branches_give_2n_minus_1_nodes_and_log2_levels(n):
    h = balanced(n)
    assert h.size == 2 * n - 1
    assert h.height == int(np.ceil(np.log2(n)))
    assert h.n_fragments == n
    leaves = np.sort(h.first[h.is_leaf])
    assert leaves.tolist() == list(range(n))
    assert ((h.last - h.first)[h.is_leaf] == 1).all()


def test_the_left_half_is_the_larger_one():
    h = balanced(5)
    assert h.first.tolist() == [0, 0, 3, 0, 2, 3, 4, 0, 1]
    assert h.last.tolist() == [5, 3, 5, 2, 3, 4, 5, 1, 2]


def test_one_fragment_is_one_node_without_children():
    h = balanced(1)
    assert (h.size, h.height, list(h.children(0))) == (1, 0, [])
    assert h.is_leaf.tolist() == [True]


def test_is_cached_and_cannot_be_changed():
    h = balanced(9)
    assert balanced(9, 2) is h
    for array in (h.parent, h.first, h.last, h.depth, h.child_start, h.child_count):
        assert array.dtype == np.int32
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3


@pytest.mark.parametrize(("n", "branching"), [(0, 2), (-3, 2), (4, 1)])
def test_refuses_what_is_no_hierarchy(n, branching):
    with pytest.raises(ValueError, match="at least"):
        balanced(n, branching)
