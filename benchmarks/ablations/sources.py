"""Encoders with one thing changed, as vector sources of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from canopy_backend.encoding import count_tokens, node_vectors, plan_nodes
from canopy_backend.fragments import Fragments, fragment
from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.items import Item, TextItem
from canopy_backend.packing import longest, pack, row_width
from canopy_training.evaluation.local import LocalSource
from canopy_training.evaluation.vectors import EncodedItem, Omissions, SourceCard, VectorSource

#: Share of a run, on either side of its middle, in which a boundary of the source may take the middle's place.
_REACH: Final = 0.25


class _Around:
    """Another source, passed through."""

    def __init__(self, inner: VectorSource) -> None:
        self._inner = inner

    @property
    def card(self) -> SourceCard:
        """What makes the vectors."""
        return self._inner.card

    @property
    def omissions(self) -> Omissions:
        """What could not be encoded so far."""
        return self._inner.omissions

    def query_vectors(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """Those of the other source."""
        return self._inner.query_vectors(queries)

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """Those of the other source."""
        return self._inner.node_vectors(items)


class Untitled(_Around):
    """Items without their titles; a table keeps its header."""

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """Nodes as if the items had no title."""
        return self._inner.node_vectors([msgspec.structs.replace(item, title="") for item in items])


class EightBits(_Around):
    """Vectors of one byte a number, each vector with a scale of its own, as an index of a quarter's size would hold."""

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """Nodes after rounding to eight bits and back."""
        return [one and EncodedItem(one.fragments, one.hierarchy, eight_bits(one.vectors), one.tokens)
                for one in self._inner.node_vectors(items)]  # fmt: skip


def eight_bits(vectors: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Vectors rounded to 255 steps between plus and minus their largest number."""
    values = vectors.astype(np.float32)
    step = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.finfo(np.float32).tiny) / 127
    return (np.rint(values / step) * step).astype(np.float16)


class Onnx(LocalSource):
    """A local source whose node encoder is an ONNX file in ONNX Runtime.

    Args:
        setup: As for the local source, which gives everything else.
        graph: The file.
    """

    def __init__(self, setup: Any, graph: Path) -> None:
        from canopy_backend.triton.encoder import Encoder
        from canopy_export.onnx_session import OnnxSession

        super().__init__(setup)
        self._encoder = Encoder(OnnxSession(graph, threads=torch.get_num_threads()))

    def _run(self, graph: torch.nn.Module, inputs: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        if graph is not self._node:
            return super()._run(graph, inputs)
        return self._encoder(dict(zip(self._encoder.inputs, inputs, strict=True)))


class Boundaries(LocalSource):
    """A local source whose hierarchies cut a text where its lines end, if such a place is near the middle."""

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """Nodes of the moved hierarchies."""
        plans = []
        for item in items:
            fragments = fragment(item)
            hierarchy = moved(item, fragments)
            encoding = self._setup.node_encoding
            plans.append(
                (item, fragments, hierarchy, plan_nodes(item, fragments, hierarchy, self._tokenizer, encoding))
            )
        found: list[EncodedItem | None] = []
        for item, fragments, hierarchy, plan in plans:
            width = row_width(longest(plan.sequences, plan.layouts))
            rows = pack(plan.sequences, width, plan.layouts)
            inputs = (rows.input_ids, rows.segment_ids, rows.position_ids, rows.slot_ids)
            step = max(1, 1024 // width)
            answers = [
                self._run(self._node, [one[at : at + step] for one in inputs])
                for at in range(0, len(rows.input_ids), step)
            ]
            parts = np.concatenate(answers)[rows.slots[:, 0], rows.slots[:, 1]]
            vectors = node_vectors(hierarchy, plan.nodes, plan.weights, parts, self._setup.node_encoding)
            found.append(EncodedItem(fragments, hierarchy, vectors, count_tokens(item, fragments, self._counter)))
        return found


def moved(item: Item, fragments: Fragments) -> Hierarchy:
    """Halves of a text, each cut moved to the nearest end of a line within a quarter of its run; else balanced."""
    n = len(fragments)
    if not isinstance(item, TextItem) or n < 3:
        return balanced(n)
    ends = [item.text[start:end].endswith("\n") for start, end in fragments.spans.tolist()]
    breaks = np.flatnonzero(ends) + 1
    if not len(breaks):
        return balanced(n)
    nodes = [(-1, 0, n, 0)]
    for place, (_, first, last, depth) in enumerate(nodes):  # grows while it is read: breadth first
        if last - first >= 2:
            middle = first + -(-(last - first) // 2)
            near = breaks[(breaks > first) & (breaks < last) & (np.abs(breaks - middle) <= _REACH * (last - first))]
            cut = int(near[np.argmin(np.abs(near - middle))]) if len(near) else middle
            nodes += [(place, first, cut, depth + 1), (place, cut, last, depth + 1)]
    return Hierarchy(*np.array(nodes, np.int32).T.copy())
