"""Hierarchies: an item's fragments grouped level by level, as arrays.

Node 0 is the root and stands for the whole item; a node is the run of fragments ``[first, last)``. Nodes are in
breadth-first order, so the children of a node are neighbours, a parent always comes before its children, and each
level can be handled by one array operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

#: Children of a node, as in the paper's main configuration.
BRANCHING: Final = 2

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """One item's nodes in breadth-first order.

    Attributes:
        parent: int32 ``[N]``, the parent of each node, -1 for the root; never decreases.
        first: int32 ``[N]``, the first fragment of each node.
        last: int32 ``[N]``, one past the last fragment of each node.
        depth: int32 ``[N]``, 0 for the root; never decreases.
        branching: Most children that a node may have.
        child_count: int32 ``[N]``, derived; 0 for a leaf.
        child_start: int32 ``[N]``, derived; the first child of each node, where it has one.
    """

    parent: Int32Array
    first: Int32Array
    last: Int32Array
    depth: Int32Array
    branching: int = BRANCHING
    child_count: Int32Array = field(init=False, repr=False)
    child_start: Int32Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = np.bincount(self.parent[1:], minlength=len(self.parent)).astype(np.int32)
        # Breadth-first: the children of node v come after the root and after the children of every node before v.
        start = (np.cumsum(count, dtype=np.int32) - count + 1).astype(np.int32)
        count.setflags(write=False)
        start.setflags(write=False)
        object.__setattr__(self, "child_count", count)
        object.__setattr__(self, "child_start", start)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.parent)

    @property
    def n_fragments(self) -> int:
        """Number of fragments under the root."""
        return int(self.last[0])

    @property
    def height(self) -> int:
        """Depth of the deepest node; 0 for a single node."""
        return int(self.depth[-1])

    @property
    def is_leaf(self) -> npt.NDArray[np.bool_]:
        """The nodes without children, as a mask, bool ``[N]``."""
        return np.equal(self.child_count, 0)

    def children(self, node: int) -> range:
        """The children of a node, in source order; empty for a leaf."""
        start = int(self.child_start[node])
        return range(start, start + int(self.child_count[node]))


def balanced(n_fragments: int, branching: int = BRANCHING) -> Hierarchy:
    """The balanced hierarchy over a run of fragments; cached, its arrays are read-only.

    A run of two or more fragments is cut into ``branching`` parts whose sizes differ by at most one, the larger parts
    first, and into fewer parts where there are fewer fragments. With two branches that is ``2 n - 1`` nodes and
    ``ceil(log2 n)`` levels below the root.

    Args:
        n_fragments: Fragments of the item, at least 1.
        branching: Most children of a node, at least 2.

    Raises:
        ValueError: A number is too small.
    """
    if n_fragments < 1:
        raise ValueError(f"a hierarchy needs at least one fragment, not {n_fragments}")
    if branching < 2:
        raise ValueError(f"a hierarchy needs a branching of at least 2, not {branching}")
    return _balanced(int(n_fragments), int(branching))


@lru_cache(maxsize=512)
def _balanced(n_fragments: int, branching: int) -> Hierarchy:
    parents = [np.array([-1], np.int32)]
    firsts = [np.array([0], np.int32)]
    lasts = [np.array([n_fragments], np.int32)]
    offset = 0
    while True:
        size = lasts[-1] - firsts[-1]
        parts = np.where(size >= 2, np.minimum(size, branching), 0)
        total = int(parts.sum())
        if total == 0:
            break
        above = np.repeat(np.arange(len(size), dtype=np.int32), parts)
        rank = np.arange(total, dtype=np.int32) - np.repeat(np.cumsum(parts) - parts, parts)
        base, rest = np.divmod(size[above], parts[above])
        begin = firsts[-1][above] + rank * base + np.minimum(rank, rest)
        parents.append((above + offset).astype(np.int32))
        lasts.append((begin + base + (rank < rest)).astype(np.int32))
        firsts.append(begin.astype(np.int32))
        offset += len(size)
    levels = [len(level) for level in parents]
    parent, first, last = (np.concatenate(arrays) for arrays in (parents, firsts, lasts))
    depth = np.repeat(np.arange(len(levels), dtype=np.int32), levels)
    for array in (parent, first, last, depth):
        array.setflags(write=False)
    return Hierarchy(parent, first, last, depth, branching)
