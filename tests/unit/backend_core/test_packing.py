"""Packed rows: every sequence whole, in a row of its own segment, where first fit puts it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.packing import pack, row_width, runs

lengths = st.lists(st.integers(1, 64), min_size=1, max_size=80) | st.lists(st.integers(1, 5), min_size=1, max_size=200)


def sequences_of(sizes):
    """Sequences that differ from each other."""
    return [[1000 * (place + 1) + token for token in range(size)] for place, size in enumerate(sizes)]


def first_fit(sizes, width):
    rows, slots = [], [None] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        row = next((r for r in rows if r[0] + sizes[place] <= width and r[1] < width // 4), None)
        if row is None:
            row = [0, 0, len(rows)]
            rows.append(row)
        slots[place] = [row[2], row[1]]
        row[0] += sizes[place]
        row[1] += 1
    return slots


@given(lengths)
@settings(deadline=None, max_examples=60)
def test_places_as_first_fit_decreasing(sizes):
    assert pack(sequences_of(sizes), 64).slots.tolist() == first_fit(sizes, 64)


@given(lengths, st.sampled_from([64, 128]))
@settings(deadline=None, max_examples=60)
def test_every_sequence_comes_back_whole(sizes, width):
    sequences = sequences_of(sizes)
    rows = pack(sequences, width)
    for sequence, (row, slot) in zip(sequences, rows.slots.tolist(), strict=True):
        assert slot < width // 4
        mine = rows.segment_ids[row] == slot + 1
        assert rows.input_ids[row][mine].tolist() == sequence
        assert rows.position_ids[row][mine].tolist() == list(range(len(sequence)))
    assert int((rows.segment_ids > 0).sum()) == sum(sizes)
    padding = rows.segment_ids == 0
    assert not rows.input_ids[padding].any()
    assert not rows.position_ids[padding].any()
    assert rows.input_ids.dtype == rows.segment_ids.dtype == rows.position_ids.dtype == np.int64
    assert rows.slots.dtype == np.int32


@given(lengths)
@settings(deadline=None, max_examples=30)
def test_padding_lies_behind_the_sequences(sizes):
    rows = pack(sequences_of(sizes), 64)
    used = rows.segment_ids > 0
    assert (used[:, :-1] | ~used[:, 1:]).all()
    steps = np.diff(rows.segment_ids, axis=1)[used[:, 1:]]
    assert set(steps.tolist()) <= {0, 1}


def test_a_row_holds_no_more_sequences_than_slots():
    rows = pack([[5]] * 40, 64)
    assert rows.input_ids.shape == (3, 64)
    assert np.bincount(rows.slots[:, 0]).tolist() == [16, 16, 8]


@pytest.mark.parametrize(
    ("longest", "width"), [(1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (256, 256), (300, 512)]
)
def test_the_smallest_row_that_holds_the_longest(longest, width):
    assert row_width(longest) == width


@pytest.mark.parametrize("sequences", [[], [[]], [[1], []], [[1] * 65]])
def test_refuses_what_does_not_fit(sequences):
    with pytest.raises(ValueError, match="rows of 64 tokens"):
        pack(sequences, 64)


@given(st.lists(st.integers(0, 30)), st.integers(1, 40))
def test_runs_cover_everything_and_stay_small(sizes, most):
    cut = list(runs(sizes, most))
    assert [place for first, last in cut for place in range(first, last)] == list(range(len(sizes)))
    for first, last in cut:
        assert sum(sizes[first:last]) <= most or last == first + 1
    for (first, last), (_, after) in pairwise(cut):
        assert sum(sizes[first : last + 1]) > most, "a run ends only where the next one does not fit"
        assert after > last
