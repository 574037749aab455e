"""LangChain: ``EmbeddingsFilter`` over documents that a splitter of its own makes. Runs in the peers' environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from langchain_classic.retrievers.document_compressors import EmbeddingsFilter
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_text_splitters import CharacterTextSplitter, NLTKTextSplitter, TextSplitter

from benchmarks.peers.arms import Arm
from benchmarks.peers.encoder import Encoder
from benchmarks.peers.mapping import Span, locate_pieces
from benchmarks.peers.pieces import Pieces, by_item, cut_items
from benchmarks.peers.protocol import AskedItem

# It warns of every sentence that is longer than the size below.
logging.getLogger("langchain_text_splitters.base").setLevel(logging.ERROR)


class SharedEmbeddings(Embeddings):  # type: ignore[misc]  # the project's environment has no such package
    """The shared encoder as LangChain wants it."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector a text."""
        return [vector.tolist() for vector in self._encoder.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The question's vector."""
        return self.embed_documents([text])[0]


def sentences() -> TextSplitter:
    """A sentence a document: no two fit into one character."""
    return NLTKTextSplitter(separator="", use_span_tokenize=True, chunk_size=1, chunk_overlap=0, add_start_index=True)


def chunks() -> TextSplitter:
    """The splitter of LangChain's guide to contextual compression."""
    return CharacterTextSplitter(separator=". ", chunk_size=300, chunk_overlap=0, add_start_index=True)


class LangChain:
    """``EmbeddingsFilter`` over all items of a question.

    Args:
        encoder: The encoder.
        splitter: Makes the splitter.
        titled: Whether the title stands in front of every document.
    """

    def __init__(self, encoder: Encoder, splitter: Callable[[], TextSplitter], *, titled: bool = False) -> None:
        self._embeddings = SharedEmbeddings(encoder)
        self._splitter = splitter()
        self._titled = titled

    def cut(self, items: Sequence[AskedItem]) -> list[Pieces]:
        """Documents of each item, where the splitter's ``start_index`` says."""
        return cut_items(items, self._cut)

    def encoded(self, pieces: Pieces) -> list[str]:
        """What a document says."""
        return pieces.titled() if self._titled else pieces.texts

    def run(self, question: str, items: Sequence[Pieces], arm: Arm, knob: float) -> tuple[list[list[int]], int]:
        """Filter the documents of all items; their places travel in the metadata."""
        texts = [text for pieces in items for text in self.encoded(pieces)]
        if not texts:  # an empty list is an error to the filter
            return [[] for _ in items], 0
        documents = [Document(page_content=text, metadata={"place": place}) for place, text in enumerate(texts)]
        settings = {"k": int(knob)} if arm.knob == "k" else {"k": None, "similarity_threshold": knob}
        kept = EmbeddingsFilter(embeddings=self._embeddings, **settings).compress_documents(documents, question)
        return by_item([int(document.metadata["place"]) for document in kept], items), 0

    def _cut(self, text: str) -> tuple[list[str], list[Span | None]]:
        documents = self._splitter.create_documents([text])
        texts = [str(document.page_content) for document in documents]
        return texts, locate_pieces(text, texts, [document.metadata.get("start_index") for document in documents])
