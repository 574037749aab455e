"""Rows of an encoder that sees pixels, as the served graphs take them: every input has the row as its first axis.

A row brings the features of its own pixels along, so rows of any requests can be put into one batch. Rows of text have
one line of features, which no token names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from canopy_backend.packing import row_width
from canopy_backend.qwen3vl.chat import ChatSequence
from canopy_backend.qwen3vl.rows import ChatRows, pack_rows, pad_rows

#: Lines of ``places``: the three axes of a position, and the feature of a visual token.
PLACES: Final = 4
#: Feature maps of the vision tower: what takes a visual token's place, and what three decoder layers add to it.
MAPS: Final = 4

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SeenRows:
    """Inputs of a served graph.

    Attributes:
        input_ids: int64 ``[R, L]``.
        segment_ids: int64 ``[R, L]``, from 1 in each row, 0 for padding; also the slot of each token.
        places: int64 ``[R, 4, L]``: time, height and width from 0 in each sequence, and from 1 the row's own line of
            features that a visual token has; 0 for text.
        features: float32 ``[R, 4, V, H]``.
        slots: int32 ``[n, 2]``, row and slot of each sequence's vector.
    """

    input_ids: Int64Array
    segment_ids: Int64Array
    places: Int64Array
    features: FloatArray
    slots: npt.NDArray[np.int32]

    def node_inputs(self) -> dict[str, npt.NDArray[Any]]:
        """The tensors by the names of the node graph's inputs."""
        return {
            "input_ids": self.input_ids,
            "segment_ids": self.segment_ids,
            "places": self.places,
            "slot_ids": self.segment_ids,
            "features": self.features,
        }

    def query_inputs(self) -> dict[str, npt.NDArray[Any]]:
        """The tensors by the names of the query graph's inputs; each row must be one sequence."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": (self.segment_ids > 0).astype(np.int64),
            "places": self.places,
            "features": self.features,
        }


def seen_rows(sequences: Sequence[ChatSequence], features: Sequence[FloatArray], *, packed: bool) -> SeenRows:
    """Rows of sequences with pixels, as wide as the longest needs.

    Args:
        sequences: n >= 1 sequences.
        features: float32 ``[4, v, H]`` of the v visual tokens of each.
        packed: Several sequences in a row, or each in one of its own.
    """
    width = row_width(max(len(sequence.ids) for sequence in sequences))
    rows = (pack_rows if packed else pad_rows)(sequences, width)
    return _with_features(rows, features)


def text_places(positions: Int64Array) -> Int64Array:
    """``places`` int64 ``[R, 4, L]`` of rows of text, from their positions int64 ``[R, L]``."""
    places = np.repeat(positions[:, None, :], PLACES, axis=1)
    places[:, -1] = 0
    return places


def no_features(rows: int, hidden: int) -> FloatArray:
    """``features`` float32 ``[rows, 4, 1, hidden]`` of rows of text."""
    return np.zeros((rows, MAPS, 1, hidden), np.float32)


def _with_features(rows: ChatRows, features: Sequence[FloatArray]) -> SeenRows:
    """Give each row the features of its own sequences, one after another, and number them there."""
    counts = [table.shape[1] for table in features]
    begins = np.zeros(len(counts), np.int64)  # in the row
    used = np.zeros(len(rows.input_ids), np.int64)
    for place, (row, _) in enumerate(rows.slots.tolist()):
        begins[place] = used[row]
        used[row] += counts[place]
    # Few sizes, so that rows of different requests meet in one batch.
    lines = row_width(int(used.max())) if used.any() else 1
    table = np.zeros((len(used), MAPS, lines, features[0].shape[2]), np.float32)
    places = np.concatenate([rows.position_ids, rows.visual_index[:, None, :]], axis=1)
    before = np.cumsum(counts) - counts  # in all sequences, as visual_index counts
    for place, (row, slot) in enumerate(rows.slots.tolist()):
        begin = int(begins[place])
        table[row, :, begin : begin + counts[place]] = features[place]
        mine = (rows.segment_ids[row] == slot + 1) & (places[row, -1] > 0)
        places[row, -1, mine] += begin - int(before[place])
    return SeenRows(rows.input_ids, rows.segment_ids, places, table, rows.slots)
