"""Parity gates: torch, the exported graphs and the running server must give one set of vectors and decisions.

A cosine alone does not tell whether an export is good: what the product needs is that the same nodes are kept. So each
gate compares both, on the caller's own items and queries. Two implementations round differently, and one last bit of a
float16 decides between scores that are all but equal; only there may decisions differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import ExportError
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item
from canopy_backend.limits import Limits
from canopy_backend.manifest import Precision
from canopy_backend.packing import PackedRows
from canopy_backend.plan import plan_request
from canopy_backend.refinement import refine, score
from canopy_backend.templates import query_text
from canopy_backend.tokenization import pad
from canopy_backend.tree import decode_tree
from canopy_backend.triton.artefacts import NODE_ENCODER, QUERY_ENCODER, load_counter, load_pair
from canopy_backend.triton.encoder import GRAPH_FILE, Encoder
from canopy_export.onnx_session import OnnxSession
from canopy_export.source import read_source

#: Smallest cosine between two vectors of the same text, by the precision that is compared with float32.
MIN_COSINE: Final[dict[Precision, float]] = {"fp32": 0.9999, "bf16": 0.9998, "fp16": 0.9998}
#: Two scores that are nearer than this are told apart by rounding and by nothing else: by that of vectors to float16,
#: and in reduced precision by that of the products too.
TIE: Final[dict[Precision, float]] = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 5e-4}
#: Items that are planned together; bounds the memory of one pass.
_BATCH: Final = 16

FloatArray = npt.NDArray[np.float32]
Runs = tuple[tuple[int, int], ...]


class Encoders(Protocol):
    """A query encoder and a node encoder."""

    def query(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> FloatArray:
        """Padded rows ``[N,L]`` to vectors ``[N,D]``."""

    def nodes(self, rows: PackedRows) -> FloatArray:
        """Packed rows ``[R,L]`` to the mean states of their slots ``[R,S,D]``."""


class OnnxEncoders:
    """The exported graphs of a repository in ONNX Runtime."""

    def __init__(self, repository: Path) -> None:
        self._query = Encoder(OnnxSession(repository / QUERY_ENCODER / "1" / GRAPH_FILE))
        self._node = Encoder(OnnxSession(repository / NODE_ENCODER / "1" / GRAPH_FILE))

    def query(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> FloatArray:
        """Padded rows ``[N,L]`` to vectors ``[N,D]``."""
        return self._query({"input_ids": ids, "attention_mask": mask})

    def nodes(self, rows: PackedRows) -> FloatArray:
        """Packed rows ``[R,L]`` to the mean states of their slots ``[R,S,D]``."""
        return self._node(_node_inputs(rows))


class TorchEncoders:
    """The model folder in torch, float32: what the others are measured against."""

    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        from canopy_export.graphs import NodeGraph, QueryGraph, load_backbone, vocabulary_of

        source = read_source(model)
        base = load_backbone(str(source.path))
        self._query = QueryGraph(base, source.pooling).eval()
        if adapter is not None:
            from canopy_export.adapter import merge_adapter

            base = load_backbone(str(source.path))
            base = merge_adapter(base, adapter, source.pooling, vocabulary_of(base))
        self._node = NodeGraph(base, source.pooling).eval()

    def query(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> FloatArray:
        """Padded rows ``[N,L]`` to vectors ``[N,D]``."""
        return _run_torch(self._query, [ids, mask])

    def nodes(self, rows: PackedRows) -> FloatArray:
        """Packed rows ``[R,L]`` to the mean states of their slots ``[R,S,D]``.

        Few rows at a time, as memory grows with all of them.
        """
        inputs = list(_node_inputs(rows).values())
        parts = [_run_torch(self._node, [one[at : at + 8] for one in inputs]) for at in range(0, len(inputs[0]), 8)]
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one implementation makes of the same queries and items.

    Attributes:
        queries: float32 ``[Q,D]``.
        nodes: float16 ``[N,D]`` of each item.
        kept: For each query and item, the kept runs of fragments in source order.
        margins: For each query and item, the smallest distance of two scores that were compared on the way; empty
            where scores are not known.
    """

    queries: FloatArray
    nodes: list[npt.NDArray[np.float16]]
    kept: dict[tuple[int, int], Runs]
    margins: dict[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parity:
    """How well an implementation agrees with the reference.

    Attributes:
        cosine: Smallest cosine over all queries and nodes.
        decisions: Pairs of a query and an item that were compared.
        equal: Those with exactly the same kept runs.
        tied: Those that differ, where the reference compared two scores nearer than :data:`TIE`.
        first_difference: Query and item of the first pair that differs without such a tie.
        precision: Arithmetic of the implementation, which the limits belong to.
    """

    cosine: float
    decisions: int
    equal: int
    tied: int
    first_difference: tuple[int, int] | None
    precision: Precision = "fp32"

    def require(self, name: str) -> None:
        """Raise :class:`ExportError` unless the gate is passed: cosine over the limit, decisions equal but for ties."""
        limit = MIN_COSINE[self.precision]
        if not self.cosine >= limit:
            raise ExportError(f"{name}: smallest cosine {self.cosine:.6f}, limit {limit}")
        if self.equal + self.tied != self.decisions:
            raise ExportError(
                f"{name}: {self.equal} of {self.decisions} decisions are equal, {self.tied} are ties; "
                f"the first that differs is query {self.first_difference and self.first_difference[0]} on item "
                f"{self.first_difference and self.first_difference[1]}"
            )


def run_encoders(encoders: Encoders, repository: Path, queries: Sequence[str], items: Sequence[Item]) -> Outcome:
    """Encode and refine with the library, without a server; the tokenizers come from the repository."""
    query, node = load_pair(repository)
    counter = load_counter(repository)
    vectors = encoders.query(*pad(query.tokenizer.encode([query_text(text) for text in queries])))
    nodes: list[npt.NDArray[np.float16]] = []
    kept: dict[tuple[int, int], Runs] = {}
    margins: dict[tuple[int, int], float] = {}
    for start in range(0, len(items), _BATCH):
        batch = items[start : start + _BATCH]
        revision = node.manifest.revision
        rows, plan = plan_request(
            batch,
            tokenizer=node.tokenizer,
            counter=counter,
            revision=revision,
            limits=Limits(max_rows=1 << 20),
            node_encoding=node.manifest.node_encoding,
        )
        for offset, tree in enumerate(plan.trees(batch, encoders.nodes(rows), revision=revision)):
            nodes.append(tree.vectors)
            for place, vector in enumerate(vectors):
                scores = score(tree.vectors, vector)
                chosen = refine(tree.hierarchy, scores)
                margins[place, start + offset] = margin(tree.hierarchy, scores, chosen)
                kept[place, start + offset] = tuple(
                    zip(tree.hierarchy.first[chosen].tolist(), tree.hierarchy.last[chosen].tolist(), strict=True)
                )
    return Outcome(vectors, nodes, kept, margins)


def margin(hierarchy: Hierarchy, scores: FloatArray, kept: npt.NDArray[np.int32]) -> float:
    """Smallest distance of a child's score from its parent's, among the comparisons that led to the kept nodes."""
    visited = np.zeros(hierarchy.size, np.bool_)
    visited[kept] = True
    for depth in range(hierarchy.height, 0, -1):
        visited[hierarchy.parent[visited & (hierarchy.depth == depth)]] = True
    above = hierarchy.parent[1:]
    distances = np.abs(scores[1:] - scores[above])[visited[above]]
    return float(distances.min(initial=np.inf))


def run_endpoint(client: Any, repository: Path, queries: Sequence[str], items: Sequence[Item]) -> Outcome:
    """Encode and refine with a running server: every node is encoded once, by ``index``; queries then use the trees.

    Args:
        client: A :class:`canopy_client.CanopyClient`.
        repository: The repository that the server runs, for the revision its trees must have.
        queries: Q queries.
        items: The items.
    """
    revision = load_pair(repository)[1].manifest.revision
    trees = [one.tree for one in client.index(items)]
    nodes = [decode_tree(tree, item=item, revision=revision).vectors for item, tree in zip(items, trees, strict=True)]
    indexed = [msgspec.structs.replace(item, tree=tree) for item, tree in zip(items, trees, strict=True)]
    kept: dict[tuple[int, int], Runs] = {}
    for place, text in enumerate(queries):
        for index, evidence in enumerate(client.compress(text, indexed)):
            kept[place, index] = tuple((region.first, region.last) for region in evidence.regions)
    return Outcome(client.embed_query(list(queries)), nodes, kept)


def compare(reference: Outcome, actual: Outcome, precision: Precision = "fp32") -> Parity:
    """Compare two outcomes of the same queries and items; the reference's margins tell what is a tie.

    Args:
        reference: That of float32.
        actual: What is judged.
        precision: Its arithmetic: ``fp32``, ``bf16`` or ``fp16``.
    """
    pairs = [(reference.queries, actual.queries), *zip(reference.nodes, actual.nodes, strict=True)]
    cosine = min(_cosine(np.asarray(left, np.float32), np.asarray(right, np.float32)) for left, right in pairs)
    different = [pair for pair, runs in reference.kept.items() if actual.kept[pair] != runs]
    clear = [pair for pair in different if not reference.margins.get(pair, np.inf) < TIE[precision]]
    total, tied = len(reference.kept), len(different) - len(clear)
    return Parity(cosine, total, total - len(different), tied, clear[0] if clear else None, precision)


def _cosine(left: FloatArray, right: FloatArray) -> float:
    """Smallest cosine of two sets of rows; rows are unit length up to float16's rounding."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / lengths).min())


def _node_inputs(rows: PackedRows) -> dict[str, npt.NDArray[np.int64]]:
    return {
        "input_ids": rows.input_ids,
        "segment_ids": rows.segment_ids,
        "position_ids": rows.position_ids,
        "slot_ids": rows.slot_ids,
    }


def _run_torch(graph: Any, inputs: Sequence[npt.NDArray[np.int64]]) -> FloatArray:
    import torch

    with torch.inference_mode():
        output: FloatArray = graph(*(torch.from_numpy(np.ascontiguousarray(one)) for one in inputs)).numpy()
    return output
