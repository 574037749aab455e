"""Packed rows: many short token sequences in few rows of one width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final

import numpy as np
import numpy.typing as npt

#: The narrowest row, in tokens; wider ones are doublings of it, so that requests meet in few shapes.
MIN_WIDTH: Final = 64

#: A row of L tokens has L / 4 slots for results, so no more sequences than that go into it.
TOKENS_A_SLOT: Final = 4

Int64Array = npt.NDArray[np.int64]
IntpArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Encoder input in which each row holds several sequences.

    Attributes:
        input_ids: int64 ``[R, L]``, 0 where nothing is.
        segment_ids: int64 ``[R, L]``, 1 for the first sequence of a row, 2 for the next, 0 for padding.
        position_ids: int64 ``[R, L]``, from 0 in each sequence.
        slot_ids: int64 ``[R, L]``, 1 for the first part of a row, 2 for the next, 0 for padding; the same as
            ``segment_ids`` where each sequence is one part.
        slots: int32 ``[n_parts, 2]``, where the vector of each part comes out: row, and slot counted from 0.
    """

    input_ids: Int64Array
    segment_ids: Int64Array
    position_ids: Int64Array
    slot_ids: Int64Array
    slots: npt.NDArray[np.int32]


def empty_row() -> PackedRows:
    """One row that holds nothing, for a model step that may not receive zero rows."""
    ids, segment_ids, position_ids, slot_ids = np.zeros((4, 1, MIN_WIDTH), np.int64)
    return PackedRows(ids, segment_ids, position_ids, slot_ids, np.zeros((0, 2), np.int32))


def runs(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Cut a sequence into runs ``[first, last)`` whose sizes add up to at most ``most``; a larger one stands alone."""
    first = total = 0
    for place, size in enumerate(sizes):
        if place > first and total + size > most:
            yield first, place
            first, total = place, 0
        total += size
    if len(sizes) > first:
        yield first, len(sizes)


def row_width(longest: int) -> int:
    """The smallest row that holds a sequence of ``longest`` tokens: 64, 128, 256 and so on."""
    width = MIN_WIDTH
    while width < longest:
        width *= 2
    return width


def longest(sequences: Sequence[Sequence[int]], layouts: Sequence[Sequence[int]] | None = None) -> int:
    """Most tokens of a row that one of the sequences takes, for :func:`row_width`; arguments as for :func:`pack`."""
    lengths = np.fromiter(map(len, sequences), np.intp, len(sequences))
    return int(lengths.max() if layouts is None else _demand(lengths, _parts(layouts)).max())


def pack(sequences: Sequence[Sequence[int]], width: int, layouts: Sequence[Sequence[int]] | None = None) -> PackedRows:
    """Put sequences into rows by first fit, the longest first, equal lengths in their given order.

    Args:
        sequences: n >= 1 sequences of at least one token.
        width: Tokens of a row, a multiple of 4.
        layouts: For each token of each sequence its part, counted from 0. A sequence of p parts takes at least 4 p
            tokens of a row, so that its slots are there. Without layouts, each sequence is one part.

    Raises:
        ValueError: There is no sequence, or one is empty or takes more than a row.
    """
    lengths = np.fromiter(map(len, sequences), np.intp, len(sequences))
    parts = None if layouts is None else _parts(layouts)
    demand = lengths if parts is None else _demand(lengths, parts)
    if not len(lengths) or lengths.min() < 1 or demand.max() > width:
        raise ValueError(f"rows of {width} tokens hold one or more sequences of 1 to {width} tokens")
    rows, segments, starts = _first_fit(demand, width)
    n_rows = int(rows.max()) + 1
    within = _ramps(lengths)
    place = np.repeat(rows * width + starts, lengths) + within
    flat = np.zeros((4, n_rows * width), np.int64)
    flat[0, place] = np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum()))
    flat[1, place] = np.repeat(segments + 1, lengths)
    flat[2, place] = within
    if layouts is None or parts is None:
        flat[3] = flat[1]
        slots = np.stack([rows, segments], axis=1)
    else:
        before = _before(rows, segments, parts)
        part = np.fromiter(chain.from_iterable(layouts), np.int64, len(place))
        flat[3, place] = np.repeat(before, lengths) + part + 1
        slots = np.stack([np.repeat(rows, parts), np.repeat(before, parts) + _ramps(parts)], axis=1)
    ids, segment_ids, position_ids, slot_ids = flat.reshape(4, n_rows, width)
    return PackedRows(ids, segment_ids, position_ids, slot_ids, slots.astype(np.int32))


def _parts(layouts: Sequence[Sequence[int]]) -> IntpArray:
    """Number of parts of each sequence."""
    return np.fromiter((max(layout, default=0) + 1 for layout in layouts), np.intp, len(layouts))


def _demand(lengths: IntpArray, parts: IntpArray) -> IntpArray:
    """Tokens of a row that each sequence takes."""
    return np.maximum(lengths, TOKENS_A_SLOT * parts)


def _before(rows: IntpArray, segments: IntpArray, parts: IntpArray) -> IntpArray:
    """Slots of a row that stand before each sequence's own."""
    order = np.lexsort((segments, rows))
    ends = np.cumsum(parts[order])
    begins = ends - parts[order]
    first = np.searchsorted(rows[order], rows[order])  # the row's first sequence
    before = np.empty(len(rows), np.intp)
    before[order] = begins - begins[first]
    return before


def _first_fit(lengths: IntpArray, width: int) -> tuple[IntpArray, IntpArray, IntpArray]:
    """Row, segment in the row and first token of each sequence.

    Free tokens of the rows are the leaves of a tree of maxima, so the first row with enough of them is found in a few
    steps; rows not yet begun stand behind the others with all tokens free. A row takes at once as many sequences of
    one length as first fit would give it one by one.
    """
    most = width // TOKENS_A_SLOT
    order = np.argsort(-lengths, kind="stable")
    size = 1 << (len(lengths) - 1).bit_length()
    free = [width] * (2 * size)
    filled = [0] * size
    rows: list[int] = []
    segments: list[int] = []
    starts: list[int] = []
    for length, group in groupby(lengths[order].tolist()):
        left = sum(1 for _ in group)
        while left:
            node = 1
            while node < size:
                node *= 2
                node += free[node] < length
            row, start, segment = node - size, width - free[node], filled[node - size]
            taken = min(left, free[node] // length, most - segment)
            rows += [row] * taken
            segments += range(segment, segment + taken)
            starts += range(start, start + taken * length, length)
            left -= taken
            filled[row] += taken
            free[node] = free[node] - taken * length if filled[row] < most else 0
            while node > 1:
                node //= 2
                free[node] = max(free[2 * node], free[2 * node + 1])
    placed = np.empty((3, len(lengths)), np.intp)
    placed[:, order] = rows, segments, starts
    return placed[0], placed[1], placed[2]


def _ramps(counts: IntpArray) -> IntpArray:
    """0, 1, .. count - 1 for each count, one after another."""
    total = int(counts.sum())
    return np.arange(total, dtype=np.intp) - np.repeat(np.cumsum(counts) - counts, counts)
