"""What the orchestrator needs of a vector store, and that over the project's Milvus collections."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, get_args

import numpy as np
import numpy.typing as npt

from canopy_backend.items import Modality
from canopy_client import telemetry
from canopy_client.deadline import Deadline
from canopy_milvus import AsyncCorpus, Hit

Embed = Callable[[Sequence[str]], Awaitable[npt.NDArray[np.float32]]]

#: Query vectors kept by one retriever; a question has at most as many queries as rounds.
CACHED_QUERIES: Final = 256

_MODALITIES: Final[tuple[Modality, ...]] = get_args(Modality)


class Retriever(Protocol):
    """Finds items for a query."""

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        """The best items, best first, no id twice.

        Args:
            query: Retrieval text.
            k: Most items of the whole search, or of each modality where ``modalities`` is given.
            modalities: Corpora to search, each by itself; ``None`` for all together.
            deadline: When the caller stops waiting.

        Raises:
            RetrievalError: The store refused or failed.
        """
        ...


class MilvusRetriever:
    """Searches a corpus in Milvus. Vectors of queries are kept, so a repeated one is not embedded again.

    Args:
        corpus: The open corpus.
        embed: Makes query vectors; :meth:`canopy_client.AsyncCanopyClient.embed_query`.
    """

    def __init__(self, corpus: AsyncCorpus, embed: Embed) -> None:
        self._corpus = corpus
        self._embed = embed
        self._vectors: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        """See :class:`Retriever`."""
        vector = await self._vector(query)
        left = deadline.timeout_s("retrieval")
        options = {} if left is None or math.isinf(left) else {"deadline_s": left}
        with telemetry.span("search", kind="CLIENT", db_system="milvus", canopy_k=k):
            if modalities is None:
                return await self._corpus.search(vector, k, **options)
            chosen = [modality for modality in _MODALITIES if modality in modalities]
            try:
                async with asyncio.TaskGroup() as group:
                    searches = [
                        group.create_task(self._corpus.search(vector, k, modalities=[modality], **options))
                        for modality in chosen
                    ]
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
        return sorted((hit for one in searches for hit in one.result()), key=lambda hit: -hit.score)

    async def _vector(self, query: str) -> npt.NDArray[np.float32]:
        if query not in self._vectors:
            self._vectors[query] = (await self._embed([query]))[0]
            while len(self._vectors) > CACHED_QUERIES:
                self._vectors.popitem(last=False)
        return self._vectors[query]
