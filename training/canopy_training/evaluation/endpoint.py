"""Vectors from a running evidence server: trees by ``index``, queries by ``embed_query``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import LimitExceeded
from canopy_backend.items import Item
from canopy_backend.tree import decode_tree, revision_of
from canopy_client import CanopyClient
from canopy_training.evaluation.vectors import EncodedItem, Omissions, SourceCard

#: Seconds that one batch of items may take: a server on one CPU encodes long items for minutes.
DEADLINE_S: Final = 600.0


class EndpointSource:
    """The encoder of a server.

    Args:
        target: ``HOST:PORT`` of its gRPC endpoint.
        client: A client to use instead of a new one.

    Raises:
        CanopyError: The address is malformed, or the server does not answer.
    """

    def __init__(self, target: str, client: CanopyClient | None = None) -> None:
        self._client = client or CanopyClient(target, deadline_s=DEADLINE_S)
        self._omissions = Omissions()
        encoder = self._client.encoder()
        self._dimension = encoder.dimension
        self._card = SourceCard(
            name="endpoint",
            model=target,
            revision=encoder.revision,
            node_encoding="server",
            branching=0,
            window=0,
            reader="server",
        )

    @property
    def card(self) -> SourceCard:
        """What makes the vectors."""
        return self._card

    @property
    def omissions(self) -> Omissions:
        """What the server refused so far."""
        return self._omissions

    def query_vectors(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """Float32 ``[n, D]``, unit length; a row of NaN for a query that is over a limit of the server."""
        try:
            return self._client.embed_query(list(queries))
        except LimitExceeded as error:
            if len(queries) == 1:
                self._omissions.queries[queries[0]] = str(error)
                return np.full((1, self._dimension), np.nan, np.float32)
        middle = len(queries) // 2
        return np.concatenate([self.query_vectors(queries[:middle]), self.query_vectors(queries[middle:])])

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """The nodes of each item; ``None`` for one that is over a limit of the server."""
        if not items:
            return []
        # Ids of several files may meet in one call; a place in it cannot be taken twice, and no id leaves here.
        sent = [msgspec.structs.replace(item, tree=None, id=str(place)) for place, item in enumerate(items)]
        try:
            indexed = self._client.index(sent)
        except LimitExceeded as error:
            if len(items) == 1:
                self._omissions.items[items[0].id] = str(error)
                return [None]
            middle = len(items) // 2
            return [*self.node_vectors(items[:middle]), *self.node_vectors(items[middle:])]
        trees = [decode_tree(one.tree, item=one.item, revision=revision_of(one.tree)) for one in indexed]
        return [EncodedItem(tree.fragments, tree.hierarchy, tree.vectors, tree.tokens) for tree in trees]
