"""Instances and pairs: the definition's own examples, each of its cases, and the definition itself as a slow oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.refinement import refine
from canopy_training.instances import correct, instances

FIVE = balanced(5)


def gold_of(n: int, *places: int) -> np.ndarray:
    gold = np.zeros(n, np.bool_)
    gold[list(places)] = True
    return gold


def runs(hierarchy: Hierarchy, gold: np.ndarray) -> dict[tuple[int, int], set[tuple[tuple[int, int], tuple[int, int]]]]:
    """Pairs by instance, every node written as its run of fragments."""
    found = instances(hierarchy, gold)
    run = list(zip(hierarchy.first.tolist(), hierarchy.last.tolist(), strict=True))
    result = {run[node]: set() for node in found.nodes.tolist()}
    for (above, below), place in zip(found.pairs.tolist(), found.owner.tolist(), strict=True):
        result[run[int(found.nodes[place])]].add((run[above], run[below]))
    return result


def test_gold_in_both_halves_of_five() -> None:
    root, left, right = (0, 5), (0, 3), (3, 5)
    assert runs(FIVE, gold_of(5, 2, 3)) == {
        root: {(left, root), (right, root)},
        left: {((2, 3), left), (left, (0, 2)), ((2, 3), (0, 2))},
        right: {((3, 4), right), (right, (4, 5)), ((3, 4), (4, 5))},
    }


def test_a_node_that_is_gold_throughout_stands_above_its_children() -> None:
    found = runs(FIVE, gold_of(5, 0, 1))
    assert len(found) == 3
    assert sum(map(len, found.values())) == 8
    assert found[(0, 2)] == {((0, 2), (0, 1)), ((0, 2), (1, 2))}


def test_all_gold_is_one_instance_at_the_root() -> None:
    assert runs(FIVE, gold_of(5, *range(5))) == {(0, 5): {((0, 5), (0, 3)), ((0, 5), (3, 5))}}


def test_no_gold_or_one_fragment_has_no_instance() -> None:
    assert len(instances(FIVE, gold_of(5))) == 0
    assert len(instances(balanced(1), gold_of(1, 0))) == 0


def test_more_than_two_branches_pair_every_gold_child_with_every_other() -> None:
    found = runs(balanced(4, 4), gold_of(4, 0, 2))
    root, leaves = (0, 4), [(i, i + 1) for i in range(4)]
    above, below = [leaves[0], leaves[2]], [leaves[1], leaves[3]]
    pairs = {(u, root) for u in above} | {(root, u) for u in below} | {(a, b) for a in above for b in below}
    assert found == {root: pairs}


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(2, 5))
def test_the_definition_word_by_word(marks: list[bool], branching: int) -> None:
    hierarchy, gold = balanced(len(marks), branching), np.array(marks)

    def leaves(node: int) -> set[int]:
        return set(range(hierarchy.first[node], hierarchy.last[node]))

    wanted = {int(place) for place in np.flatnonzero(gold)}
    expected = set()
    for node in range(hierarchy.size):
        ancestor, covered = int(hierarchy.parent[node]), False
        while ancestor >= 0:
            covered |= leaves(ancestor) <= wanted
            ancestor = int(hierarchy.parent[ancestor])
        if len(hierarchy.children(node)) and leaves(node) & wanted and not covered:
            expected.add(node)
    found = instances(hierarchy, gold)
    assert set(found.nodes.tolist()) == expected
    assert set(found.owner.tolist()) == set(range(len(found)))
    for place, node in enumerate(found.nodes.tolist()):
        children = list(hierarchy.children(node))
        above = [child for child in children if leaves(child) & wanted]
        below = [child for child in children if not leaves(child) & wanted]
        if leaves(node) <= wanted:
            pairs = {(node, child) for child in children}
        else:
            pairs = {(u, node) for u in above} | {(node, u) for u in below} | {(u, w) for u in above for w in below}
        mine = found.pairs[found.owner == place].tolist()
        assert len(mine) == len(pairs)
        assert {tuple(pair) for pair in mine} == pairs


@given(st.lists(st.booleans(), min_size=2, max_size=24), st.integers(0, 2**32 - 1))
def test_when_every_decision_is_right_the_walk_keeps_the_gold_and_nothing_else(marks: list[bool], seed: int) -> None:
    hierarchy, gold = balanced(len(marks)), np.array(marks)
    found = instances(hierarchy, gold)
    if not len(found):
        return
    # Scores that decide everything rightly: the share of gold, and a full node a little above its children.
    inside = np.concatenate([[0], np.cumsum(gold)])
    share = (inside[hierarchy.last] - inside[hierarchy.first]) / (hierarchy.last - hierarchy.first)
    jitter = np.random.default_rng(seed).uniform(0, 1e-4, hierarchy.size)
    scores = (np.where(share > 0, 0.5 + 0.01 * hierarchy.depth, 0.1 - 0.001 * hierarchy.depth) + jitter * 0).astype(
        np.float32
    )
    full = share == 1
    for node in np.flatnonzero(full).tolist():
        for child in hierarchy.children(node):
            scores[child] = scores[node] - 0.001
    assert correct(hierarchy, found, scores).all()
    kept = refine(hierarchy, scores)
    fragments = {place for node in kept for place in range(hierarchy.first[node], hierarchy.last[node])}
    assert fragments == set(np.flatnonzero(gold).tolist())


def test_ties_are_right_only_where_a_child_enters() -> None:
    hierarchy = balanced(2)
    enters = instances(hierarchy, gold_of(2, 0))
    assert correct(hierarchy, enters, np.array([0.5, 0.5, 0.4], np.float32)).tolist() == [True]
    assert correct(hierarchy, enters, np.array([0.5, 0.5, 0.5], np.float32)).tolist() == [False]
    assert correct(hierarchy, enters, np.array([0.5, 0.4, 0.3], np.float32)).tolist() == [False]
    stops = instances(hierarchy, gold_of(2, 0, 1))
    assert correct(hierarchy, stops, np.array([0.5, 0.4, 0.4], np.float32)).tolist() == [True]
    assert correct(hierarchy, stops, np.array([0.5, 0.5, 0.4], np.float32)).tolist() == [False]
