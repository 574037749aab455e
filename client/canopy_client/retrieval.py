"""What the orchestrator needs of a vector store, and that over the project's Milvus collections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from canopy_client.deadline import Deadline
from canopy_milvus import Hit

Embed = Callable[[Sequence[str]], Awaitable[npt.NDArray[np.float32]]]

#: Query vectors kept by one retriever; a question has at most as many queries as rounds.
CACHED_QUERIES = 256


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
