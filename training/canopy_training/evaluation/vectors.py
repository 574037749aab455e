"""Where the evaluation gets its vectors from: one small interface over a model in this process and a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.fragments import Fragments
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item


class SourceCard(msgspec.Struct, frozen=True, kw_only=True):
    """What made the vectors.

    Attributes:
        name: What the report calls it.
        model: Base model.
        revision: Revision of its weights, or of the encoder that a server runs.
        adapter: Revision of the adapter; empty without one.
        node_encoding: ``separate``, ``contextual``, or ``server`` where only the server knows.
        branching: Most children of a node; 0 where only the server knows.
        window: Most tokens that are encoded at once; 0 where only the server knows.
        reader: The tokenizer that counts the reader's tokens.
        precision: Arithmetic of the encoder.
    """

    name: str
    model: str
    revision: str
    adapter: str = ""
    node_encoding: str
    branching: int
    window: int
    reader: str
    precision: str = "fp32"


@dataclass(frozen=True, slots=True, eq=False)
class EncodedItem:
    """One item's nodes with their vectors.

    Attributes:
        fragments: Its fragments.
        hierarchy: The nodes over them.
        vectors: float16 ``[N, D]``, unit length.
        tokens: int32 ``[F + 1]``, the reader's tokens of each fragment and then of the prefix.
    """

    fragments: Fragments
    hierarchy: Hierarchy
    vectors: npt.NDArray[np.float16]
    tokens: npt.NDArray[np.int32]


@dataclass(slots=True)
class Omissions:
    """What could not be encoded as it is; nothing of this happens in silence.

    Attributes:
        items: Items without vectors, by id, with the reason.
        queries: Questions without a vector, by their text, with the reason.
        cut: Items with leaves longer than the encoder's window, by id, with the number of such leaves. Those are
            encoded window by window and pooled, so no text is lost.
    """

    items: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)


class VectorSource(Protocol):
    """Vectors of queries and of items' nodes, from one encoder."""

    @property
    def card(self) -> SourceCard:
        """What makes the vectors."""

    @property
    def omissions(self) -> Omissions:
        """What could not be encoded so far."""

    def query_vectors(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """Float32 ``[n, D]``, unit length; a row of NaN for a query that cannot be encoded."""

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """The nodes of each item; ``None`` for one that cannot be encoded."""
