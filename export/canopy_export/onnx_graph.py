"""One graph to one ONNX file, checked against torch on shapes that the trace did not see."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from canopy_backend.errors import ExportError
from canopy_export.graphs import TOKENS_PER_SLOT, NodeGraph, QueryGraph
from canopy_export.onnx_session import OnnxSession
from canopy_export.onnx_write import EXTERNAL_OVER, write_onnx

#: Largest absolute difference between torch and ONNX Runtime, and between packed and separate rows.
TOLERANCE: Final = 1e-5
_SEED: Final = 20261

Inputs = dict[str, torch.Tensor]
FloatArray = npt.NDArray[np.float32]


def export_query_graph(graph: QueryGraph, path: Path, vocabulary: int) -> None:
    """Write the query graph to ``path`` and check it on two unseen batch sizes and lengths.

    Raises:
        ExportError: ONNX Runtime does not give torch's vectors.
    """
    _write(graph, query_rows(vocabulary, [5, 9], 12), path, "embedding", {0: "rows"})
    for lengths, width in (([16, 3, 1], 16), ([40, 7], 61)):
        _compare(graph, path, query_rows(vocabulary, lengths, width))


def export_node_graph(graph: NodeGraph, path: Path, vocabulary: int) -> None:
    """Write the node graph to ``path``; check it against torch, and packed rows against separate ones.

    Raises:
        ExportError: ONNX Runtime does not give torch's vectors, or a segment's vector depends on its neighbours.
    """
    _write(graph, packed_rows(vocabulary, [[5, 9, 4], [7]], 24), path, "embeddings", {0: "rows", 1: "slots"})
    alone = QueryGraph(graph.backbone, graph.pooling).eval()
    for layout, width in (([[64]], 64), ([[30, 8, 5, 4], [70, 50], [9] * 12], 128)):
        whole = packed_rows(vocabulary, layout, width)
        packed = _compare(graph, path, whole)
        _check_alone(alone, whole, packed)
        if graph.pooling == "mean":
            parted = packed_rows(vocabulary, layout, width, parts=2)
            _check_parts(whole, packed, parted, _compare(graph, path, parted))


def query_rows(vocabulary: int, lengths: list[int], width: int) -> Inputs:
    """Random padded rows: ``input_ids`` and ``attention_mask`` int64 ``[len(lengths), width]``."""
    random = np.random.default_rng(_SEED)
    mask = (np.arange(width)[None, :] < np.array(lengths)[:, None]).astype(np.int64)
    ids = random.integers(0, vocabulary, size=mask.shape) * mask
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}


def packed_rows(vocabulary: int, layout: list[list[int]], width: int, parts: int = 1) -> Inputs:
    """Random packed rows: for each row the lengths of its segments, each cut into up to ``parts`` slots."""
    random = np.random.default_rng(_SEED)
    segments = np.zeros((len(layout), width), np.int64)
    positions = np.zeros_like(segments)
    slots = np.zeros_like(segments)
    for row, lengths in enumerate(layout):
        start = 0
        for segment, length in enumerate(lengths, start=1):
            cut = np.arange(length) * min(parts, length) // length
            slots[row, start : start + length] = slots[row].max() + 1 + cut
            segments[row, start : start + length] = segment
            positions[row, start : start + length] = np.arange(length)
            start += length
    ids = random.integers(0, vocabulary, size=segments.shape) * (segments > 0)
    arrays = {"input_ids": ids, "segment_ids": segments, "position_ids": positions, "slot_ids": slots}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _write(graph: torch.nn.Module, inputs: Inputs, path: Path, output: str, axes: dict[int, str]) -> None:
    free: dict[str, dict[int, str]] = {name: {0: "rows", 1: "tokens"} for name in inputs}
    write_onnx(graph, inputs, path, [output], {**free, output: axes}, external_over=EXTERNAL_OVER)


def _compare(graph: torch.nn.Module, path: Path, inputs: Inputs) -> FloatArray:
    with torch.inference_mode():
        expected = graph(*inputs.values()).numpy()
    actual = OnnxSession(path)({name: tensor.numpy() for name, tensor in inputs.items()})
    difference = _distance(expected, actual)
    # Written so that NaN fails too.
    if not difference <= TOLERANCE:
        shape = tuple(inputs["input_ids"].shape)
        raise ExportError(f"{path.name}: differs from torch by {difference:.2e} at rows {shape}, limit {TOLERANCE:.0e}")
    return actual


def _check_alone(alone: QueryGraph, inputs: Inputs, packed: FloatArray) -> None:
    """Each segment by itself must point where it points in its row, and each unused slot must be zero."""
    segments = inputs["segment_ids"]
    for row in range(segments.shape[0]):
        used = int(segments[row].max())
        for slot in range(used):
            ids = inputs["input_ids"][row][segments[row] == slot + 1][None]
            with torch.inference_mode():
                expected = alone(ids, torch.ones_like(ids))[0].numpy()
            difference = _distance(expected, packed[row, slot] / np.linalg.norm(packed[row, slot]))
            if not difference <= TOLERANCE:
                raise ExportError(
                    f"packed rows change a vector by {difference:.2e}, limit {TOLERANCE:.0e}: "
                    f"this architecture does not take position_ids and a block mask as expected"
                )
        if packed[row, used : segments.shape[1] // TOKENS_PER_SLOT].any():
            raise ExportError("an unused slot of a packed row is not zero")


def _check_parts(whole: Inputs, means: FloatArray, parted: Inputs, parts: FloatArray) -> None:
    """The parts of a segment must add up to what its one slot gives."""
    for row in range(len(means)):
        segments, slots = whole["segment_ids"][row].numpy(), parted["slot_ids"][row].numpy()
        for slot in range(int(segments.max())):
            mine, counts = np.unique(slots[segments == slot + 1], return_counts=True)
            pooled = (parts[row, mine - 1] * counts[:, None]).sum(0) / counts.sum()
            difference = _distance(means[row, slot], pooled)
            if not difference <= TOLERANCE:
                raise ExportError(f"the slots of a segment miss its mean by {difference:.2e}, limit {TOLERANCE:.0e}")


def _distance(expected: FloatArray, actual: FloatArray) -> float:
    """Largest absolute difference, in units of each expected vector's length; NaN where a value is."""
    lengths = np.linalg.norm(expected, axis=-1, keepdims=True)
    return float((np.abs(expected - actual) / np.where(lengths > 0, lengths, 1)).max())
