"""Training instances and preference pairs of one item, and whether scores decide them rightly.

arXiv 2610.00923, section on training. Seen from the root, gold fragments say what the walk should do at a node: enter
the children that hold gold and no others, and stop where everything is gold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from canopy_backend.hierarchy import Hierarchy

Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """The decisions that an item's gold fragments settle.

    Attributes:
        nodes: int32 ``[V]``, the node of each, ascending.
        pairs: int32 ``[P, 2]``, nodes a and b of each preference "a above b".
        owner: int32 ``[P]``, the place in ``nodes`` that a pair belongs to, ascending.
    """

    nodes: Int32Array
    pairs: Int32Array
    owner: Int32Array

    def __len__(self) -> int:
        return len(self.nodes)


def instances(hierarchy: Hierarchy, gold: BoolArray) -> Instances:
    """The instances V and pairs P(v) of one item.

    V holds the inner nodes that overlap gold and have no ancestor that is gold throughout. Of a node that is itself
    gold throughout, the pairs put it above each child. Of any other, they put its gold-overlapping children above it,
    it above the rest, and each of the former above each of the latter.

    Args:
        hierarchy: The item's nodes.
        gold: bool ``[F]``, its gold fragments.

    Returns:
        No instance when nothing is gold or the item is a single node.
    """
    inside = np.concatenate([[0], np.cumsum(gold)])
    held = inside[hierarchy.last] - inside[hierarchy.first]
    overlaps, full = held > 0, held == hierarchy.last - hierarchy.first
    reached = overlaps & ~hierarchy.is_leaf
    # Parents stand before their children, so one sweep carries "some ancestor is gold throughout" all the way down.
    for node in np.flatnonzero(reached).tolist():
        parent = int(hierarchy.parent[node])
        if parent >= 0 and (full[parent] or not reached[parent]):
            reached[node] = False
    nodes = np.flatnonzero(reached).astype(np.int32)
    pairs: list[tuple[int, int]] = []
    owner: list[int] = []
    for place, node in enumerate(nodes.tolist()):
        children = hierarchy.children(node)
        if full[node]:
            own = [(node, child) for child in children]
        else:
            above = [child for child in children if overlaps[child]]
            below = [child for child in children if not overlaps[child]]
            own = [(child, node) for child in above]
            own += [(node, child) for child in below]
            own += [(a, b) for a in above for b in below]
        pairs += own
        owner += [place] * len(own)
    return Instances(nodes, np.array(pairs, np.int32).reshape(-1, 2), np.array(owner, np.int32))


def correct(hierarchy: Hierarchy, found: Instances, scores: npt.NDArray[np.float32]) -> BoolArray:
    """Strict decision accuracy: the instances whose every pair holds.

    A child above its parent holds also at equal scores, as the walk enters a child that ties; every other pair needs
    a strict order.

    Args:
        hierarchy: The item's nodes.
        found: Its instances.
        scores: float32 ``[N]``.

    Returns:
        bool ``[V]``.
    """
    above, below = found.pairs.T
    enters = hierarchy.parent[above] == below
    holds = np.where(enters, scores[above] >= scores[below], scores[above] > scores[below])
    result = np.ones(len(found), np.bool_)
    np.logical_and.at(result, found.owner, holds)
    return result
