"""Training examples: one item's decisions for one question, with the token sequences that they need and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.contextual import reach
from canopy_backend.encoding import NodePlan, plan_nodes
from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.manifest import NodeEncoding
from canopy_backend.packing import TOKENS_A_SLOT
from canopy_backend.tokenization import EncoderTokenizer, TokenIds
from canopy_training.data import Question
from canopy_training.gold import Located, locate
from canopy_training.instances import Instances, instances

IntArray = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

#: Lines about items that were left out, at most, in a report.
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Nodes without a sequence of their own, pooled from their children: ``parents[i]`` takes ``children[i]``.

    Attributes:
        parents: int64 ``[C]``, places among the example's nodes.
        children: int64 ``[C]``, the same.
        mass: float32 ``[C]``, tokens of each child.
    """

    parents: IntArray
    children: IntArray
    mass: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Decisions of one item for one question.

    Attributes:
        question: Place of the question.
        dataset: Its data set.
        weak: Whether the gold comes from the answers alone.
        sequences: The token sequences that are encoded.
        layouts: The part of each token of each sequence, or ``None`` (see :class:`canopy_backend.encoding.NodePlan`).
        n_parts: Parts of all sequences.
        terms: int64 ``[T, 2]``, node and part: which parts make up which node.
        weights: float32 ``[T]``, the weight of each term.
        folds: Nodes that are pooled from children, deepest first.
        n_nodes: Nodes that get a vector; pairs count among them.
        pairs: int64 ``[P, 2]``, a above b.
        owner: int64 ``[P]``, the instance of each pair, from 0.
        enters: bool ``[P]``, the pairs of a child above its own parent, where equal scores are right.
        n_instances: Instances.
    """

    question: int
    dataset: str
    weak: bool
    sequences: list[TokenIds]
    layouts: list[list[int]] | None
    n_parts: int
    terms: IntArray
    weights: Float32Array
    folds: list[Fold]
    n_nodes: int
    pairs: IntArray
    owner: IntArray
    enters: npt.NDArray[np.bool_]
    n_instances: int

    @property
    def tokens(self) -> int:
        """Tokens that the example takes in packed rows."""
        return sum(_costs(self.sequences, self.layouts))

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence in a packed row."""
        return max(_costs(self.sequences, self.layouts))


@dataclass(slots=True)
class Tally:
    """What became of the questions.

    Attributes:
        items: Gold items whose place is known.
        weak_items: Those of them that were found from answers alone.
        instances: Instances in examples.
        whole: Located items with a single fragment, where nothing is to be decided.
        lost: One line for each gold item without a place.
        oversized: One line for each item with instances whose nodes need more tokens than a step holds.
        oversized_instances: How many instances that is.
    """

    items: int = 0
    weak_items: int = 0
    instances: int = 0
    whole: int = 0
    lost: list[str] = field(default_factory=list)
    oversized: list[str] = field(default_factory=list)
    oversized_instances: int = 0

    def lines(self) -> list[str]:
        """The tally in words, with the first names of what was left out."""
        lines = [f"{self.items} gold items, {self.weak_items} of them from answers alone; {self.instances} instances"]
        if self.whole:
            lines.append(f"{self.whole} gold items have one fragment and no decision")
        for what, names in (("without a place for their gold", self.lost), ("too long for a step", self.oversized)):
            if names:
                lines.append(f"{len(names)} left out, {what}:")
                lines += [f"  {name}" for name in names[:_SHOWN]]
                lines += [f"  and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        return lines


def make_examples(
    questions: Sequence[Question],
    tokenizer: EncoderTokenizer,
    *,
    node_encoding: NodeEncoding,
    branching: int,
    max_tokens: int,
) -> tuple[list[Example], Tally]:
    """The examples of all questions.

    Args:
        questions: The questions; an example refers to its own by its place.
        tokenizer: The node encoder's.
        node_encoding: How nodes are encoded.
        branching: Branching of the hierarchies.
        max_tokens: Tokens of one step. An instance that needs more is left out and counted; an item whose instances
            need more together becomes several examples.
    """
    tally = Tally()
    examples: list[Example] = []
    for place, question in enumerate(questions):
        located, lost = locate(question)
        tally.lost += lost
        for entry in located:
            tally.items += 1
            tally.weak_items += entry.weak
            hierarchy = balanced(len(entry.fragments), branching)
            found = instances(hierarchy, entry.gold)
            if not len(found):
                tally.whole += 1
                continue
            plan = plan_nodes(entry.item, entry.fragments, hierarchy, tokenizer, node_encoding)
            parts, left_out = _split(entry, hierarchy, found, plan, max_tokens)
            if left_out:
                tally.oversized_instances += left_out
                tally.oversized.append(f"question {question.id!r:.80}, item {entry.item.id!r:.80}: {left_out}")
            for chosen in parts:
                examples.append(_example(place, question.dataset, entry, hierarchy, chosen, plan))
                tally.instances += len(chosen)
    return examples, tally


def _costs(sequences: Sequence[TokenIds], layouts: Sequence[Sequence[int]] | None) -> list[int]:
    if layouts is None:
        return [len(sequence) for sequence in sequences]
    return [
        max(len(sequence), TOKENS_A_SLOT * (max(layout) + 1))
        for sequence, layout in zip(sequences, layouts, strict=True)
    ]


def _split(
    entry: Located, hierarchy: Hierarchy, found: Instances, plan: NodePlan, max_tokens: int
) -> tuple[list[Instances], int]:
    """The instances in groups that fit a step, and how many do not fit even alone."""
    costs = np.array(_costs(plan.sequences, plan.layouts), np.int64)
    groups: list[list[int]] = []
    filled: set[int] = set()
    left_out = 0
    for place, node in enumerate(found.nodes.tolist()):
        needed = set(_needed(hierarchy, plan, _family(hierarchy, [node]))[1].tolist())
        if costs[sorted(needed)].sum() > max_tokens:
            left_out += 1
            continue
        if not groups or costs[sorted(filled | needed)].sum() > max_tokens:
            groups.append([])
            filled = set()
        groups[-1].append(place)
        filled |= needed
    return [_subset(found, group) for group in groups], left_out


def _subset(found: Instances, places: Iterable[int]) -> Instances:
    chosen = np.array(sorted(places), np.int64)
    mine = np.isin(found.owner, chosen)
    owner = np.searchsorted(chosen, found.owner[mine]).astype(np.int32)
    return Instances(found.nodes[chosen], found.pairs[mine], owner)


def _family(hierarchy: Hierarchy, nodes: Iterable[int]) -> list[int]:
    """Some nodes and their children, ascending."""
    return sorted({member for node in nodes for member in (node, *hierarchy.children(node))})


def _needed(hierarchy: Hierarchy, plan: NodePlan, nodes: Iterable[int]) -> tuple[list[int], IntArray]:
    """What the vectors of some nodes depend on: nodes, ascending, and sequences, ascending."""
    if plan.layouts is not None:
        nodes = sorted(nodes)
        found = reach(hierarchy, plan.nodes)
        windows = [np.arange(*found.windows[node]) for node in nodes]
        return nodes, np.unique(np.concatenate([np.arange(found.shared), *windows])).astype(np.int64)
    encoded = np.zeros(hierarchy.size, np.bool_)
    encoded[plan.nodes] = True
    open_nodes = list(nodes)
    closed: set[int] = set()
    while open_nodes:
        node = open_nodes.pop()
        closed.add(node)
        if not encoded[node]:
            open_nodes += hierarchy.children(node)
    return sorted(closed), np.flatnonzero(np.isin(plan.nodes, sorted(closed)))


def _example(
    place: int, dataset: str, entry: Located, hierarchy: Hierarchy, found: Instances, plan: NodePlan
) -> Example:
    nodes, sequences = _needed(hierarchy, plan, _family(hierarchy, found.nodes.tolist()))
    parts = np.flatnonzero(np.isin(plan.sequence, sequences))
    terms, weights = (
        _pooled_terms(nodes, plan, parts) if plan.layouts is None else _span_terms(hierarchy, nodes, plan, parts)
    )
    local = {node: index for index, node in enumerate(nodes)}
    above, below = found.pairs.T
    return Example(
        question=place,
        dataset=dataset,
        weak=entry.weak,
        sequences=[plan.sequences[index] for index in sequences.tolist()],
        layouts=None if plan.layouts is None else [plan.layouts[index] for index in sequences.tolist()],
        n_parts=len(parts),
        terms=terms,
        weights=weights,
        folds=_folds(hierarchy, nodes, plan) if plan.layouts is None else [],
        n_nodes=len(nodes),
        pairs=np.array([[local[a], local[b]] for a, b in found.pairs.tolist()], np.int64),
        owner=found.owner.astype(np.int64),
        enters=hierarchy.parent[above] == below,
        n_instances=len(found),
    )


def _pooled_terms(nodes: Sequence[int], plan: NodePlan, parts: IntArray) -> tuple[IntArray, Float32Array]:
    """``separate``: a node is the weighted mean of its own windows."""
    node_of_part = np.searchsorted(nodes, plan.nodes[parts])
    return np.stack([node_of_part, np.arange(len(parts))], axis=1), plan.weights[parts].astype(np.float32)


def _span_terms(
    hierarchy: Hierarchy, nodes: Sequence[int], plan: NodePlan, parts: IntArray
) -> tuple[IntArray, Float32Array]:
    """``contextual``: a node is its pieces and the mean of the contexts of the windows that hold them."""
    found = reach(hierarchy, plan.nodes)
    place_of = np.full(len(plan.nodes), -1)
    place_of[parts] = np.arange(len(parts))
    contexts, pieces = np.flatnonzero(plan.nodes < 0), np.flatnonzero(plan.nodes >= 0)
    terms, weights = [], []
    for index, node in enumerate(nodes):
        own = pieces[slice(*found.pieces[node])]
        around = contexts[[*range(found.shared), *range(*found.windows[node])]]
        used = np.concatenate([own, around])
        share = np.concatenate([np.ones(len(own)), np.full(len(around), 1 / max(1, len(around)))])
        terms.append(np.stack([np.full(len(used), index), place_of[used]], axis=1))
        weights.append(plan.weights[used] * share)
    return np.concatenate(terms).astype(np.int64), np.concatenate(weights).astype(np.float32)


def _folds(hierarchy: Hierarchy, nodes: Sequence[int], plan: NodePlan) -> list[Fold]:
    """The nodes that are longer than the window, deepest first, with the tokens of their children."""
    encoded = np.zeros(hierarchy.size, np.bool_)
    encoded[plan.nodes] = True
    missing = [node for node in nodes if not encoded[node]]
    if not missing:
        return []
    mass = np.zeros(hierarchy.size, np.float32)
    np.add.at(mass, plan.nodes, plan.weights)
    local = {node: index for index, node in enumerate(nodes)}
    folds = []
    for depth in sorted({int(hierarchy.depth[node]) for node in missing}, reverse=True):
        edges = [(node, c) for node in missing if hierarchy.depth[node] == depth for c in hierarchy.children(node)]
        parents, children = np.array(edges).T
        folds.append(
            Fold(
                np.array([local[node] for node in parents.tolist()]),
                np.array([local[node] for node in children.tolist()]),
                mass[children],
            )
        )
        np.add.at(mass, parents, mass[children])
    return folds
