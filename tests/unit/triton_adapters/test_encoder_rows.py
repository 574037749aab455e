"""Which rows and columns an encoder gives to its graph, with a graph in numpy that shows what it got."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.packing import pack
from canopy_backend.triton.encoder import Encoder

CHUNK = 96


class Sums:
    """Slot ``s`` is the sum of the ids of its tokens, and of one and all: like the node graph, a slot for 4 columns."""

    inputs = ("input_ids", "segment_ids", "position_ids", "slot_ids")

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        ids, slots = inputs["input_ids"], inputs["slot_ids"]
        self.shapes.append(ids.shape)
        members = slots[:, None, :] == np.arange(1, ids.shape[1] // 4 + 1)[None, :, None]
        return np.stack([(members * ids[:, None, :]).sum(2), members.sum(2)], 2).astype(np.float32)


@st.composite
def packed(draw: st.DrawFn) -> dict[str, np.ndarray]:
    sizes = draw(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 3)), min_size=1, max_size=12))
    layouts = [[place * parts // length for place in range(length)] for length, parts in sizes]
    lengths = [length for length, _ in sizes]
    rows = pack([[1 + place] * length for place, length in enumerate(lengths)], 64, layouts)
    inputs = {name: getattr(rows, name) for name in Sums.inputs}
    order = draw(st.permutations(range(len(rows.input_ids) + 2)))  # and two rows that hold nothing
    return {name: np.concatenate([array, np.zeros((2, 64), np.int64)])[order] for name, array in inputs.items()}


@settings(deadline=None, max_examples=50)
@given(packed())
def test_what_is_left_out_changes_nothing(inputs: dict[str, np.ndarray]) -> None:
    graph = Sums()
    outputs = Encoder(graph, chunk_tokens=CHUNK)(inputs)
    np.testing.assert_array_equal(outputs, Sums()(inputs))
    asked, *calls = graph.shapes
    assert asked == (1, 64)
    assert sum(rows for rows, _ in calls) == int(inputs["segment_ids"].any(axis=1).sum())
    assert all(columns % 4 == 0 and (rows == 1 or rows * columns <= CHUNK) for rows, columns in calls)


def test_rows_of_one_length_meet_in_one_call_without_their_padding() -> None:
    graph = Sums()
    ids = np.zeros((6, 64), np.int64)
    ids[[0, 2, 5], :30] = 7
    ids[[1, 3, 4], :13] = 7
    inputs = dict.fromkeys(Sums.inputs, (ids > 0).astype(np.int64)) | {"input_ids": ids}
    outputs = Encoder(graph, chunk_tokens=CHUNK)(inputs)
    assert graph.shapes[1:] == [(3, 32), (3, 16)]
    assert outputs[:, 0].tolist() == [[7.0 * n, n] for n in (30, 13, 30, 13, 13, 30)]


class Places(Sums):
    """The same for rows that bring features: the second number is the feature of the row, untouched by columns."""

    inputs = ("input_ids", "segment_ids", "places", "slot_ids", "features")

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        answer = super().__call__(inputs)
        assert inputs["places"].shape == (len(answer), 4, inputs["input_ids"].shape[1])
        answer[:, :, 1] = inputs["features"][:, 3, -1, :1]
        return answer


def test_columns_are_cut_where_there_is_one_for_each_token() -> None:
    graph = Places()
    rows = pack([[5] * 6, [7] * 90], 128)
    inputs = {name: getattr(rows, name) for name in ("input_ids", "segment_ids", "slot_ids")}
    inputs["places"] = np.repeat(rows.position_ids[:, None], 4, axis=1)
    few, many = (np.full((1, 4, lines, 8), lines, np.float32) for lines in (1, 64))
    outputs = Encoder(graph).together([{**inputs, "features": one} for one in (few, many, few)])
    assert graph.shapes[1:] == [(2, 96), (1, 96)]
    assert [one[0, :2].tolist() for one in outputs] == [[[630, n], [30, n]] for n in (1.0, 64.0, 1.0)]


def test_slots_keep_their_columns() -> None:
    """A part of one token needs a slot of four columns: more columns than the row has tokens."""
    graph = Sums()
    rows = pack([[5] * 6], 64, [list(range(6))])
    outputs = Encoder(graph)({name: getattr(rows, name) for name in Sums.inputs})
    assert graph.shapes[1:] == [(1, 24)]
    assert outputs[0, :7].tolist() == [[5.0, 1.0]] * 6 + [[0.0, 0.0]]
