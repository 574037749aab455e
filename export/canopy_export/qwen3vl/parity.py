"""Vectors and decisions of items with pixels, in torch or by the files, in the form of :mod:`canopy_export.parity`.

Another way through the same graphs than the server's (:mod:`canopy_backend.qwen3vl.sight`): what it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import node_vectors
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Item
from canopy_backend.packing import row_width, runs
from canopy_backend.qwen3vl.chat import ChatSequence, encode_content
from canopy_backend.qwen3vl.grids import frame_calls, grid_inputs
from canopy_backend.qwen3vl.nodes import ContentPlan, plan_content
from canopy_backend.qwen3vl.rows import pack_rows, pad_rows, vectors_of
from canopy_backend.qwen3vl.serving import MAPS, seen_rows
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.refinement import refine, score
from canopy_backend.templates import query_text
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.parity import Outcome, margin
from canopy_export.qwen3vl.onnx_files import Run

#: Most patches of one call of the vision graph.
_PATCHES: Final = 4096
#: Most tokens of one call of the language graph.
_TOKENS: Final = 8192

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PixelEncoders:
    """Both graphs of a node encoder, and the language graph of the base model for queries.

    Attributes:
        vision: From :data:`canopy_export.qwen3vl.graphs.VISION_INPUTS` to ``visual`` and ``deepstack``.
        node: The node encoder's language graph.
        query: The base model's.
        node_tokenizer: With the document's instruction.
        query_tokenizer: With the query's.
        settings: The model's.
    """

    vision: Run
    node: Run
    query: Run
    node_tokenizer: EncoderTokenizer
    query_tokenizer: EncoderTokenizer
    settings: VisionSettings

    def queries(self, queries: Sequence[str]) -> FloatArray:
        """Vectors float32 ``[n, D]`` of queries, each in a padded row."""
        encoded = [encode_content([query_text(one)], self.query_tokenizer, self.settings) for one in queries]
        rows = pad_rows(encoded, row_width(max(len(one.ids) for one in encoded)))
        return vectors_of(rows, self.query({**rows.inputs(), **self._nothing()})[0])

    def nodes(self, plan: ContentPlan) -> FloatArray:
        """Vectors float32 ``[P, D]`` of the sequences of a plan, in packed rows."""
        visual, deepstack = self._see(plan)
        sizes = [row_width(len(sequence.ids)) for sequence in plan.sequences]
        found, seen = [], 0
        for first, last in runs(sizes, _TOKENS):
            part: list[ChatSequence] = plan.sequences[first:last]
            count = sum(int(one.visual.max(initial=0)) for one in part)
            pixels = self._nothing()
            if count:
                here = slice(seen, seen + count)
                pixels = {"visual": visual[here], "deepstack": deepstack[:, here]}
            seen += count
            rows = pack_rows(part, max(sizes[first:last]))
            found.append(vectors_of(rows, self.node({**rows.inputs(), **pixels})[0]))
        return np.concatenate(found)

    def _see(self, plan: ContentPlan) -> tuple[FloatArray, FloatArray]:
        if not plan.grids:
            nothing = self._nothing()
            return nothing["visual"], nothing["deepstack"]
        inputs = grid_inputs(plan.grids, self.settings)
        arrays: dict[str, npt.NDArray[Any]] = {
            "patches": np.concatenate([look.take() for look in plan.looks if look is not None]),
            "pos_idx": inputs.pos_idx,
            "pos_w": inputs.pos_w,
            "pos_ids": inputs.pos_ids,
            "seg": inputs.seg,
        }
        calls = [
            self.vision({name: one[first:last] for name, one in arrays.items()})
            for first, last in frame_calls(plan.grids, _PATCHES)
        ]
        return np.concatenate([one for one, _ in calls]), np.concatenate([maps for _, maps in calls], axis=1)

    def _nothing(self) -> dict[str, FloatArray]:
        """A visual row that no token names, as the graph wants at least one."""
        size = self.settings.hidden
        return {"visual": np.zeros((1, size), np.float32), "deepstack": np.zeros((3, 1, size), np.float32)}


@dataclass(frozen=True, slots=True)
class ServedPixelEncoders(PixelEncoders):
    """The same with the graphs of a model repository, whose inputs have the row first.

    Attributes:
        node: From :data:`canopy_export.qwen3vl.served.NODE_INPUTS` to ``embeddings``.
        query: From :data:`canopy_export.qwen3vl.served.QUERY_INPUTS` to ``embedding``.
        alone: Each sequence in a call of its own, padded, instead of packed with others.
    """

    alone: bool = False

    def queries(self, queries: Sequence[str]) -> FloatArray:
        """Vectors float32 ``[n, D]`` of queries, each in a padded row."""
        encoded = [encode_content([query_text(one)], self.query_tokenizer, self.settings) for one in queries]
        nothing = np.zeros((MAPS, 0, self.settings.hidden), np.float32)
        rows = [
            seen_rows(encoded[first:last], [nothing] * (last - first), packed=False)
            for first, last in self._calls(encoded)
        ]
        return np.concatenate([self.query(one.query_inputs())[0] for one in rows])

    def nodes(self, plan: ContentPlan) -> FloatArray:
        """Vectors float32 ``[P, D]`` of the sequences of a plan."""
        visual, deepstack = self._see(plan)
        ends = np.cumsum([int(sequence.visual.max(initial=0)) for sequence in plan.sequences])
        maps = np.concatenate([visual[None], deepstack])[:, : ends[-1]]
        features = np.split(maps, ends[:-1].tolist(), axis=1)
        found = []
        for first, last in self._calls(plan.sequences):
            rows = seen_rows(plan.sequences[first:last], features[first:last], packed=True)
            answer = self.node(rows.node_inputs())[0]
            found.append(answer[rows.slots[:, 0], rows.slots[:, 1]])
        return np.concatenate(found)

    def _calls(self, sequences: Sequence[ChatSequence]) -> list[tuple[int, int]]:
        if self.alone:
            return [(place, place + 1) for place in range(len(sequences))]
        return list(runs([row_width(len(one.ids)) for one in sequences], _TOKENS))


def run_pixels(encoders: PixelEncoders, queries: Sequence[str], items: Sequence[Item]) -> Outcome:
    """Encode and refine items with their pixels, without a server."""
    vectors = encoders.queries(queries)
    nodes: list[npt.NDArray[np.float16]] = []
    kept, margins = {}, {}
    for place, item in enumerate(items):
        fragments = fragment(item)
        hierarchy = balanced(len(fragments))
        plan = plan_content(item, fragments, hierarchy, encoders.node_tokenizer, encoders.settings)
        nodes.append(node_vectors(hierarchy, plan.nodes, plan.weights, encoders.nodes(plan)))
        for number, vector in enumerate(vectors):
            scores = score(nodes[-1], vector)
            chosen = refine(hierarchy, scores)
            margins[number, place] = margin(hierarchy, scores, chosen)
            kept[number, place] = tuple(
                zip(hierarchy.first[chosen].tolist(), hierarchy.last[chosen].tolist(), strict=True)
            )
    return Outcome(vectors, nodes, kept, margins)
