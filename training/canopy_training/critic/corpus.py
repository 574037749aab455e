"""The items of many questions as one corpus: searched and compressed in this process as the servers would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from canopy_backend.evidence import Evidence, assemble
from canopy_backend.items import Item
from canopy_backend.refinement import refine, score
from canopy_backend.templates import item_text, query_text
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.graphs import QueryGraph, load_backbone
from canopy_export.source import read_source
from canopy_training.evaluation.local import LocalSource, Precision, Setup
from canopy_training.evaluation.vectors import EncodedItem

Float32Array = npt.NDArray[np.float32]

_BATCH: Final = 16
#: Items whose nodes are encoded together.
_ITEMS: Final = 32


class Encoder:
    """The frozen encoder for questions and whole items, and the node encoder for what is inside of items.

    Args:
        base: sentence-transformers folder.
        adapter: The node encoder's adapter; ``None`` for the base model.
        reader_tokenizer: ``tokenizer.json`` of the model that reads the evidence.
    """

    def __init__(self, base: Path, adapter: Path | None, reader_tokenizer: Path) -> None:
        source = read_source(base)
        half: Precision = "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"
        self._nodes = LocalSource(Setup(base, reader_tokenizer, adapter, precision=half))
        self._half = half == "bf16"
        self._tokenizer = EncoderTokenizer(source.tokenizer, source.window)
        self._graph = QueryGraph(load_backbone(str(source.path)), source.pooling).eval()
        self._encoded: dict[str, EncodedItem] = {}
        self._dimension = source.dimension
        self._known: dict[str, Float32Array] = {}

    def vectors(self, texts: Sequence[str]) -> Float32Array:
        """Unit vectors, float32 ``[n, D]``, by the frozen encoder; a text over its window is cut."""
        fresh = list(dict.fromkeys(text for text in texts if text not in self._known))
        self._known |= dict(zip(fresh, self._vectors(fresh), strict=True))
        return np.array([self._known[text] for text in texts], np.float32)

    def _vectors(self, texts: Sequence[str]) -> Float32Array:
        rows = [self._cut(row) for row in self._tokenizer.encode(list(texts))]
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        result = np.zeros((len(rows), self._dimension), np.float32)
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            width = max(len(rows[place]) for place in chosen)
            ids, mask = self._tokenizer.pad([rows[place] for place in chosen], (width,))
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._half):
                result[chosen] = self._graph(torch.from_numpy(ids), torch.from_numpy(mask)).float().numpy()
        return result

    def prepare(self, items: Sequence[Item]) -> None:
        """Encode the nodes of items that were not seen yet."""
        fresh = {item.id: item for item in items if item.id not in self._encoded}
        ordered = sorted(fresh.values(), key=lambda item: len(item_text(item)))
        for start in range(0, len(ordered), _ITEMS):
            chosen = ordered[start : start + _ITEMS]
            for item, encoded in zip(chosen, self._nodes.node_vectors(chosen), strict=True):
                if encoded is not None:
                    self._encoded[item.id] = encoded

    def compress(self, query: Float32Array, items: Sequence[Item]) -> list[Evidence]:
        """The evidence of each item for a query, float32 ``[D]``; as the evidence server makes it."""
        self.prepare(items)
        evidence = []
        for item in items:
            one = self._encoded[item.id]
            scores = score(one.vectors, query)
            kept = refine(one.hierarchy, scores)
            evidence.append(assemble(item, one.fragments, one.hierarchy, kept, scores, one.tokens))
        return evidence

    def _cut(self, row: Sequence[int]) -> list[int]:
        window = self._tokenizer.window
        return list(row) if len(row) <= window else [*row[: window - 1], row[-1]]


class Pool:
    """A corpus that is searched by inner product, exactly.

    Args:
        encoder: Makes the vectors.
        items: The items by id.
    """

    def __init__(self, encoder: Encoder, items: Mapping[str, Item]) -> None:
        self.items = list(items.values())
        self._vectors = encoder.vectors([item_text(item) for item in self.items])

    def search(self, query: Float32Array, k: int) -> list[Item]:
        """The ``k`` best items for a query's vector, float32 ``[D]``, the best first."""
        scores = self._vectors @ query
        k = min(k, len(scores))
        best = np.argpartition(-scores, k - 1)[:k]
        return [self.items[place] for place in best[np.argsort(-scores[best], kind="stable")].tolist()]


def query_vectors(encoder: Encoder, queries: Sequence[str]) -> Float32Array:
    """Unit vectors of queries, float32 ``[n, D]``."""
    return encoder.vectors([query_text(query) for query in queries])
