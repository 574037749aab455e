"""LlamaIndex: ``SentenceEmbeddingOptimizer``, an item a node. Runs in the peers' environment.

The optimizer returns one string, in which sentences may be repeated and out of order, and no places. So sentences pass
through it as keys: its splitter is asked for the sentences' places first, the optimizer gets a key for each, the
encoder reads the sentence behind a key, and the string that comes back is read as keys. What is kept, repeated and
reordered is the optimizer's own doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor import SentenceEmbeddingOptimizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.utils import globals_helper
from pydantic import PrivateAttr

from benchmarks.peers.arms import Arm
from benchmarks.peers.encoder import Encoder
from benchmarks.peers.mapping import Span
from benchmarks.peers.pieces import Pieces, cut_items
from benchmarks.peers.protocol import AskedItem


class SharedEmbedding(BaseEmbedding):  # type: ignore[misc]  # the project's environment has no such package
    """The shared encoder as LlamaIndex wants it; reads the texts behind keys."""

    _encoder: Encoder = PrivateAttr()
    _texts: list[str] = PrivateAttr(default_factory=list)

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(model_name="shared")
        self._encoder = encoder

    def read(self, texts: list[str]) -> None:
        """Read these texts behind the keys 0, 1, 2 and so on."""
        self._texts = texts

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in self._encoder.encode([self._texts[int(key)] for key in texts])]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._encoder.encode([query])[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class LlamaIndex:
    """``SentenceEmbeddingOptimizer`` on each item by itself.

    Args:
        encoder: The encoder.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._embedding = SharedEmbedding(encoder)

    def cut(self, items: Sequence[AskedItem]) -> list[Pieces]:
        """Sentences of the optimizer's default splitter."""
        return cut_items(items, _sentences)

    def encoded(self, pieces: Pieces) -> list[str]:
        """What is encoded of each sentence."""
        return pieces.texts

    def run(self, question: str, items: Sequence[Pieces], arm: Arm, knob: float) -> tuple[list[list[int]], int]:
        """Shorten each item; one of which no sentence is left is an error to the optimizer, and kept of it is none."""
        settings: dict[str, Any] = {arm.knob: knob}
        if arm.name.endswith("_bare"):
            settings |= {"context_before": 0, "context_after": 0}
        query = QueryBundle(question)
        kept: list[list[int]] = []
        refused = 0
        for pieces in items:
            keys = [str(place) for place in range(len(pieces.texts))]
            self._embedding.read(pieces.texts)
            optimizer = SentenceEmbeddingOptimizer(embed_model=self._embedding, tokenizer_fn=str.split, **settings)
            node = NodeWithScore(node=TextNode(text=" ".join(keys)))
            try:
                (shortened,) = optimizer.postprocess_nodes([node], query)
            except ValueError:
                refused += 1
                kept.append([])
            else:
                kept.append([int(key) for key in shortened.node.get_content().split()])
        return kept, refused


def _sentences(text: str) -> tuple[list[str], list[Span | None]]:
    spans: list[Span] = list(globals_helper.punkt_tokenizer.span_tokenize(text))
    return [text[start:end] for start, end in spans], list(spans)
