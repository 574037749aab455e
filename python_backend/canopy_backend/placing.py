"""Where the sequences of a request's items lie in the rows of its node encoder, and whether a plan's parts hold up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import NodePlan
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.packing import PackedRows, empty_row, longest, pack, row_width

Int32Array = npt.NDArray[np.int32]
IntpArray = npt.NDArray[np.intp]


def place_sequences(
    plans: Sequence[NodePlan | None], max_rows: int, widest: int
) -> tuple[PackedRows, list[Int32Array]]:
    """Pack the sequences of all items, equal ones once.

    Rows are as narrow as the longest sequence allows, and wider where they would be too many.

    Args:
        plans: One an item; ``None`` where nothing of it is encoded in these rows.
        max_rows: Rows that are aimed at.
        widest: Widest row that is tried for it.

    Returns:
        The rows, at least one, and for each item int32 ``[P, 4]``: node, row, slot and weight of each part.
    """
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    which = [[known.setdefault(key, len(known)) for key in _keys(plan)] if plan else [] for plan in plans]
    if not known:
        return empty_row(), [np.zeros((0, 4), np.int32) for _ in plans]
    sequences = [sequence for sequence, _ in known]
    layouts = [layout for _, layout in known if layout] or None
    width = row_width(longest(sequences, layouts))
    rows = pack(sequences, width, layouts)
    while len(rows.input_ids) > max_rows and width < widest:
        width *= 2
        rows = pack(sequences, width, layouts)
    counts = np.ones(len(known), np.intp)
    for plan, mine in zip(plans, which, strict=True):
        if plan:
            counts[mine] = np.bincount(plan.sequence)
    begins = np.cumsum(counts) - counts
    none = np.zeros((0, 4), np.int32)
    return rows, [_parts(plan, rows, begins[mine]) if plan else none for plan, mine in zip(plans, which, strict=True)]


def _keys(plan: NodePlan) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What tells the sequences of a plan apart: tokens and layout, which is empty where a sequence is one part."""
    if plan.layouts is None:
        return zip(map(tuple, plan.sequences), repeat(()))
    return zip(map(tuple, plan.sequences), map(tuple, plan.layouts), strict=True)


def _parts(plan: NodePlan, rows: PackedRows, begins: IntpArray) -> Int32Array:
    """The lines of :class:`ItemPlan`; ``begins`` is where the parts of each of the item's sequences begin."""
    sequence = plan.sequence
    within = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    return np.column_stack([plan.nodes, rows.slots[begins[sequence] + within], plan.weights])


def leaves_covered(hierarchy: Hierarchy, node: Int32Array) -> bool:
    """Whether the parts stand in the order of nodes, with at least one for each leaf."""
    covered = np.zeros(hierarchy.size, np.bool_)
    covered[node] = True
    return bool((np.diff(node) >= 0).all() and covered[hierarchy.is_leaf].all())


def windows_hold(hierarchy: Hierarchy, node: Int32Array) -> bool:
    """Whether a context comes first, and then leaves in source order; a leaf without tokens has no part."""
    leaves = node[node >= 0]
    in_order = (np.diff(hierarchy.first[leaves]) >= 0).all()
    return bool(node[0] < 0 and hierarchy.is_leaf[leaves].all() and in_order)
