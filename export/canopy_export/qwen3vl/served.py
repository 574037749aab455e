"""The language graph as the server has it: the row is the first axis of every input, so that requests can be batched.

``places`` are the three axes of each token's position and, from 1, its line of the row's own ``features``; 0 for text.
``features`` are the vision tower's four maps, what stands in a visual token's place first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canopy_backend.manifest import Precision
from canopy_backend.packing import TOKENS_A_SLOT
from canopy_backend.qwen3vl.rows import pad_rows, vectors_of
from canopy_backend.qwen3vl.serving import SeenRows, seen_rows
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_export.onnx_write import EXTERNAL_OVER, write_onnx
from canopy_export.qwen3vl.gates import Sample, random_sample, require
from canopy_export.qwen3vl.graphs import DEEPSTACK, LanguageGraph, to_precision
from canopy_export.qwen3vl.onnx_files import Array, load_file, run_torch

#: Inputs by name, in the order of the graphs' arguments.
NODE_INPUTS: Final = ("input_ids", "segment_ids", "places", "slot_ids", "features")
QUERY_INPUTS: Final = ("input_ids", "attention_mask", "places", "features")
#: Free axes of each tensor.
_AXES: Final = {
    **{name: {0: "rows", 1: "tokens"} for name in ("input_ids", "segment_ids", "slot_ids", "attention_mask")},
    "places": {0: "rows", 2: "tokens"},
    "features": {0: "rows", 2: "visual_tokens"},
    "embeddings": {0: "rows", 1: "slots"},
    "embedding": {0: "rows"},
}
#: Tokens and frames of the sequences that a file is checked on.
_CHECKED: Final = ([(20, 2), (5, 0), (2, 1)], [(70, 3), (9, 1), (31, 0), (3, 0)], [(40, 0)])


class _Rows(LanguageGraph):
    def rows(self, input_ids: Tensor, segment_ids: Tensor, places: Tensor, features: Tensor) -> Tensor:
        """Token states ``[R, L, hidden]``."""
        index = places[:, 3, :]
        line = (index - 1).clamp(min=0)[:, :, None].expand(-1, -1, features.shape[3])
        seen = [torch.gather(features[:, place], 1, line) for place in range(1 + DEEPSTACK)]
        return self.states(input_ids, segment_ids, places[:, :3, :], index > 0, seen)


class PixelNodeGraph(_Rows):
    """Rows of sequences to ``embeddings`` float32 ``[R, L // 4, D]``, of length one, zeros in a slot without tokens.

    As for :class:`canopy_export.graphs.NodeGraph`: slots count from 1, and a slot's vector is that of its last token.
    """

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, segment_ids: Tensor, places: Tensor, slot_ids: Tensor, features: Tensor
    ) -> Tensor:
        """Encode every segment of every row as if it stood alone."""
        states = self.rows(input_ids, segment_ids, places, features)
        column = torch.arange(input_ids.shape[1], device=input_ids.device)
        slots = torch.arange(1, input_ids.shape[1] // TOKENS_A_SLOT + 1, device=input_ids.device)
        members = slot_ids[:, None, :] == slots[None, :, None]
        last = torch.where(members, column[None, None, :], -1).max(dim=2).values
        return self.pooled(states, last)


class PixelQueryGraph(_Rows):
    """Rows of one sequence each, padded on the right, to ``embedding`` float32 ``[N, D]``, of length one."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, features: Tensor) -> Tensor:  # type: ignore[override]
        """Encode each row."""
        states = self.rows(input_ids, attention_mask, places, features)
        column = torch.arange(input_ids.shape[1], device=input_ids.device)
        last = torch.where(attention_mask > 0, column[None, :], -1).max(dim=1, keepdim=True).values
        return self.pooled(states, last)[:, 0, :]


def export_pixel_graph(
    graph: PixelNodeGraph | PixelQueryGraph, path: Path, settings: VisionSettings, precision: Precision = "fp32"
) -> None:
    """Write a graph to ``path``; check the file against the plain language graph in float32, on unseen shapes.

    Args:
        graph: The graph, in float32; its backbone is cast.
        path: The file.
        settings: The model's.
        precision: Types of the file's weights and products; inputs and vectors are float32 in all of them.

    Raises:
        ExportError: The file does not give torch's vectors.
    """
    node = isinstance(graph, PixelNodeGraph)
    names, output = (NODE_INPUTS, "embeddings") if node else (QUERY_INPUTS, "embedding")
    checks = [(texts, *_rows(graph, settings, texts)) for texts in _CHECKED]
    plain = LanguageGraph(graph.backbone, graph.dimension).eval()
    exact = [_plain_vectors(plain, sample, rows) for _, sample, rows in checks]
    to_precision(graph.backbone, precision)
    example = _inputs(_rows(graph, settings, [(9, 1), (5, 0)])[1], node=node)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(example[name])) for name in names}
    axes = {name: _AXES[name] for name in (*names, output)}
    write_onnx(graph, tensors, path, [output], axes, external_over=EXTERNAL_OVER)
    run = load_file(path, precision)
    for (texts, _, rows), expected in zip(checks, exact, strict=True):
        answer = run(_inputs(rows, node=node))[0]
        actual = answer[rows.slots[:, 0], rows.slots[:, 1]] if node else answer
        require(f"{path.name} on {texts}", expected, actual, precision)


def _plain_vectors(plain: LanguageGraph, sample: Sample, rows: SeenRows) -> Array:
    padded = pad_rows(sample.sequences, rows.input_ids.shape[1])
    return vectors_of(padded, run_torch(plain, sample.rows(padded))[0])


def _rows(
    graph: PixelNodeGraph | PixelQueryGraph, settings: VisionSettings, texts: list[tuple[int, int]]
) -> tuple[Sample, SeenRows]:
    """Random sequences, flat for the plain graph and as rows for the served one."""
    sample = random_sample(settings, int(graph.backbone.config.vocab_size), graph.hidden, texts)  # type: ignore[union-attr,arg-type]
    maps = np.concatenate([sample.visual[None], sample.deepstack])
    counts = [int(sequence.visual.max(initial=0)) for sequence in sample.sequences]
    features = [maps[:, end - count : end] for count, end in zip(counts, np.cumsum(counts).tolist(), strict=True)]
    return sample, seen_rows(sample.sequences, features, packed=isinstance(graph, PixelNodeGraph))


def _inputs(rows: SeenRows, *, node: bool) -> dict[str, Array]:
    return rows.node_inputs() if node else rows.query_inputs()
