"""Sequences to the rows of the language graph, several in a row or each in one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from canopy_backend.packing import PackedRows, pack
from canopy_backend.qwen3vl.chat import ChatSequence

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ChatRows:
    """Inputs of the language graph beside the visual embeddings.

    Attributes:
        input_ids: int64 ``[R, L]``, 0 where nothing is.
        segment_ids: int64 ``[R, L]``, from 1 in each row, 0 for padding, which stands on the right.
        position_ids: int64 ``[R, 3, L]``, from 0 in each sequence.
        last_index: int64 ``[R, S]``, column of the last token of each sequence of a row; -1 where the row has no more.
        visual_index: int64 ``[R, L]``, from 1 the row of a token's visual embedding; 0 for text.
        slots: int32 ``[n, 2]``, row and slot of each sequence's vector.
    """

    input_ids: Int64Array
    segment_ids: Int64Array
    position_ids: Int64Array
    last_index: Int64Array
    visual_index: Int64Array
    slots: npt.NDArray[np.int32]

    def inputs(self) -> dict[str, Int64Array]:
        """The tensors by the names of the graph's inputs."""
        return {
            "input_ids": self.input_ids,
            "segment_ids": self.segment_ids,
            "position_ids": self.position_ids,
            "last_index": self.last_index,
            "visual_index": self.visual_index,
        }


def pack_rows(sequences: Sequence[ChatSequence], width: int) -> ChatRows:
    """Put several sequences into each row.

    The visual embeddings are expected in the order of the sequences.

    Args:
        sequences: n >= 1 sequences.
        width: Tokens of a row, a multiple of 4.

    Raises:
        ValueError: A sequence is longer than a row.
    """
    return _with_chat(pack([sequence.ids for sequence in sequences], width), sequences)


def pad_rows(sequences: Sequence[ChatSequence], width: int) -> ChatRows:
    """Put each sequence into a row of its own, with padding on the right; arguments as for :func:`pack_rows`."""
    parts = [pack([sequence.ids], width) for sequence in sequences]
    slots = np.stack([np.arange(len(parts)), np.zeros(len(parts))], axis=1).astype(np.int32)
    rows = PackedRows(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        segment_ids=np.concatenate([part.segment_ids for part in parts]),
        position_ids=np.concatenate([part.position_ids for part in parts]),
        slot_ids=np.concatenate([part.slot_ids for part in parts]),
        slots=slots,
    )
    return _with_chat(rows, sequences)


def vectors_of(rows: ChatRows, embeddings: npt.NDArray[Any]) -> FloatArray:
    """The vector of each sequence float32 ``[n, D]`` from the graph's answer ``[R, S, D]``."""
    return np.asarray(embeddings[rows.slots[:, 0], rows.slots[:, 1]], np.float32)


def cut_dimension(vectors: FloatArray, dimension: int) -> FloatArray:
    """The first numbers of each vector, at unit length again; the model is trained so that they stand for the whole.

    Args:
        vectors: float32 ``[n, D]``.
        dimension: 1 to D.
    """
    if not 1 <= dimension <= vectors.shape[-1]:
        raise ValueError(f"dimension {dimension}: vectors have {vectors.shape[-1]}")
    head = vectors[..., :dimension]
    lengths = np.sqrt((head * head).sum(axis=-1, keepdims=True))
    return np.asarray(head / np.maximum(lengths, np.float32(1e-12)), np.float32)


def _with_chat(rows: PackedRows, sequences: Sequence[ChatSequence]) -> ChatRows:
    """Lay the three axes and the visual places where the tokens lie."""
    lengths = np.array([len(sequence.ids) for sequence in sequences], np.int64)
    starts = np.cumsum(lengths) - lengths
    seen = np.array([int(sequence.visual.max(initial=0)) for sequence in sequences], np.int64)
    before = np.cumsum(seen) - seen
    positions = np.concatenate([sequence.positions for sequence in sequences], axis=1)
    visual = np.concatenate(
        [np.where(one.visual > 0, one.visual + shift, 0) for one, shift in zip(sequences, before, strict=True)]
    )
    row, slot = rows.slots[:, 0], rows.slots[:, 1]
    of_slot = np.zeros((len(rows.input_ids), int(slot.max()) + 1), np.int64)
    of_slot[row, slot] = starts
    at_row, at_column = np.nonzero(rows.segment_ids)
    segment = rows.segment_ids[at_row, at_column] - 1
    source = of_slot[at_row, segment] + rows.position_ids[at_row, at_column]
    position_ids = np.zeros((len(rows.input_ids), 3, rows.input_ids.shape[1]), np.int64)
    position_ids[at_row, :, at_column] = positions[:, source].T
    visual_index = np.zeros_like(rows.input_ids)
    visual_index[at_row, at_column] = visual[source]
    last_index = np.full(of_slot.shape, -1, np.int64)
    np.maximum.at(last_index, (at_row, segment), at_column)
    return ChatRows(rows.input_ids, rows.segment_ids, position_ids, last_index, visual_index, rows.slots)
