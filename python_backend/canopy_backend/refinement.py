"""Refinement: from scores to the nodes that an item keeps.

Starting at the root, a node gives way to those of its children that score at least as high as it does, equality
included, and the other children go for good; a node without such a child is kept with all its fragments (arXiv
2610.00923, section on projection). The branches are independent, so the walk needs no queue here: a node is reached
exactly when it and every ancestor below the root scores at least its own parent, which is found for all nodes of all
items at once by doubling the distance looked up on every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.hierarchy import Hierarchy
from canopy_backend.packing import runs

Float16Array = npt.NDArray[np.float16]
Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

#: Rows that are scored at once: what a core's cache holds, and a bound on the memory of one request.
_BLOCK_ROWS: Final = 256
#: Between the exponents of float32 and float16.
_WIDENING: Final = np.float32(2.0**112)
#: Sign, exponent and fraction of a float16 that was shifted to their places in a float32.
_FIELDS: Final = np.array(0x8FFFE000, np.uint32).view(np.int32)[()]


def score(vectors: Float16Array, query: Float32Array) -> Float32Array:
    """Cosine of each node with the query, as unit vectors' inner product.

    A row's sum does not depend on the other rows, as it would in a blocked matrix product: equal vectors get equal
    scores, and an item gets the same scores alone and among others.

    Args:
        vectors: float16 ``[N, D]``, unit length.
        query: float32 ``[D]``, unit length.

    Returns:
        float32 ``[N]``.
    """
    return score_many([vectors], query)


def score_many(
    vectors: Sequence[Float16Array], query: Float32Array, parents: Sequence[Int32Array] | None = None
) -> Float32Array:
    """The scores of several items' nodes, one item after another; to the last bit those of each item alone.

    Args:
        vectors: float16 ``[N_i, D]`` of each item, unit length.
        query: float32 ``[D]``, unit length.
        parents: int32 ``[N_i]`` of each item, as in :class:`~canopy_backend.hierarchy.Hierarchy`. Where they are given,
            nodes of long items that the walk does not come to may be left out.

    Returns:
        float32 ``[N]``, N the sum of all ``N_i``; NaN for what was left out.
    """
    sizes = [len(one) for one in vectors]
    result = np.empty(sum(sizes), np.float32)
    # The widened vectors below are too small by this factor, which is a power of two: no product is rounded otherwise.
    scaled = query.astype(np.float32) * _WIDENING
    done = 0
    for first, last in runs(sizes, _BLOCK_ROWS):
        block = vectors[first] if last == first + 1 else np.concatenate(vectors[first:last])
        out = result[done : done + len(block)]
        if parents is not None and len(block) > _BLOCK_ROWS:
            _score_visited(block, scaled, parents[first], out)
        else:
            _score_rows(block, scaled, out)
        done += len(block)
    return result


def _score_rows(vectors: Float16Array, scaled: Float32Array, out: Float32Array) -> None:
    """The scores of all rows, a cache's worth at a time."""
    for start in range(0, len(vectors), _BLOCK_ROWS):
        part = _widened(vectors[start : start + _BLOCK_ROWS])
        # Row by row, unlike a matrix product of BLAS, whose sums depend on how many rows there are.
        np.einsum("nd,d->n", part, scaled, out=out[start : start + len(part)])


def _score_visited(vectors: Float16Array, scaled: Float32Array, parent: Int32Array, out: Float32Array) -> None:
    """The scores of one long item's first nodes, and from there on of those whose parent the walk enters."""
    out.fill(np.nan)
    end = _BLOCK_ROWS
    _score_rows(vectors[:end], scaled, out[:end])
    entered = np.zeros(len(out), np.bool_)
    entered[:end] = _entered(parent[:end], np.array([0, end], np.int32), out[:end], None)[0]
    while end < len(out):
        # Breadth-first: up to here, everyone's parent has been decided on.
        start, end = end, int(np.searchsorted(parent, end))
        rows = start + np.flatnonzero(entered[parent[start:end]])
        scores = np.empty(len(rows), np.float32)
        _score_rows(vectors[rows], scaled, scores)
        out[rows] = scores
        entered[rows] = scores >= out[parent[rows]]


def _widened(vectors: Float16Array) -> Float32Array:
    """Finite float16 as float32 divided by ``2**112``, exactly; numpy's own cast takes the values one by one."""
    bits = np.ascontiguousarray(vectors).view(np.int16).astype(np.int32)
    np.left_shift(bits, 13, out=bits)
    # The sign was copied into the bits between itself and the exponent.
    np.bitwise_and(bits, _FIELDS, out=bits)
    return bits.view(np.float32)


def refine(hierarchy: Hierarchy, scores: Float32Array, *, keep_whole: bool = False) -> Int32Array:
    """The nodes that one item keeps.

    Args:
        hierarchy: The item's nodes.
        scores: float32 ``[N]``, the score of each.
        keep_whole: Keep the root whatever the scores, as for the table of an aggregate question.

    Returns:
        int32 ``[K]``, K >= 1, in source order; no node is an ancestor of another.
    """
    offsets = np.array([0, hierarchy.size], np.int32)
    kept = np.flatnonzero(refine_many(hierarchy.parent, offsets, scores, np.array([keep_whole])))
    return kept[np.argsort(hierarchy.first[kept], kind="stable")].astype(np.int32)


def refine_many(
    parents: Int32Array, offsets: Int32Array, scores: Float32Array, keep_whole: BoolArray | None = None
) -> BoolArray:
    """The nodes that each of many items keeps.

    Args:
        parents: int32 ``[N]``, the items' parent arrays one after another, each counting from its own root, whose
            parent is -1.
        offsets: int32 ``[n + 1]``, where each item starts, then N. Every item has a node.
        scores: float32 ``[N]``.
        keep_whole: bool ``[n]``, the items that keep their root whatever the scores.

    Returns:
        bool ``[N]``, true for the nodes that are kept.
    """
    entered, parent = _entered(parents, offsets, scores, keep_whole)
    kept = entered.copy()
    below = np.flatnonzero(entered & (parents >= 0))
    kept[parent[below]] = False
    return kept


def _entered(
    parents: Int32Array, offsets: Int32Array, scores: Float32Array, keep_whole: BoolArray | None
) -> tuple[BoolArray, npt.NDArray[np.intp]]:
    """The nodes that the walk reaches, and everyone's parent in the joined numbering, a root being its own."""
    roots = offsets[:-1].astype(np.intp)
    parent: npt.NDArray[np.intp] = np.add(parents, np.repeat(roots, np.diff(offsets)), dtype=np.intp)
    parent[roots] = roots
    reached = scores >= scores[parent]
    if keep_whole is not None and keep_whole.any():
        reached &= ~np.repeat(keep_whole, np.diff(offsets))
    reached[roots] = True
    # After step i a node has looked 2**i ancestors up; as many steps as the deepest hierarchy needs, and no more.
    ancestor = parent
    for _ in range(len(parents).bit_length()):
        further = ancestor[ancestor]
        if np.array_equal(further, ancestor):
            # Everyone's look-up stands on a root, and roots are always reached.
            break
        reached &= reached[ancestor]
        ancestor = further
    return reached, parent
