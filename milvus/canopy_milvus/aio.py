"""The corpus for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy.typing as npt

from canopy_backend.items import Item
from canopy_milvus.corpus import Corpus
from canopy_milvus.rows import Hit, IndexedItem

T = TypeVar("T")

_WORKERS: Final = 8


class AsyncCorpus:
    """:class:`Corpus` with methods to await; arguments, results and errors are the same.

    It works in threads of its own rather than through the driver's async client, which is bound to the event loop that
    made it and can wait for a dead server without end. Every method ends by its ``deadline_s`` in either case.

    Args:
        corpus: The corpus to work on; this object closes it.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="corpus")

    @classmethod
    async def open(cls, *arguments: Any, **options: Any) -> AsyncCorpus:
        """Open a corpus; see :meth:`Corpus.open`. One that is open only after its caller has left is closed again."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="corpus-open")
        opening = pool.submit(Corpus.open, *arguments, **options)
        try:
            return cls(await asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            # A thread cannot be stopped: behind the opening, the same one closes what came of it.
            pool.submit(lambda: opening.result().close())
            raise
        finally:
            pool.shutdown(wait=False)

    async def upsert(self, rows: Iterable[IndexedItem], **options: Any) -> int:
        """Write items; see :meth:`Corpus.upsert`. ``rows`` is read in another thread."""
        return await self._run(self.corpus.upsert, rows, **options)

    async def existing(self, ids: Iterable[str], **options: Any) -> dict[str, bytes]:
        """Content hashes of the ids that are stored; see :meth:`Corpus.existing`."""
        return await self._run(self.corpus.existing, ids, **options)

    async def unchanged(self, items: Iterable[Item], **options: Any) -> set[str]:
        """Ids of the items that are stored as given; see :meth:`Corpus.unchanged`."""
        return await self._run(self.corpus.unchanged, items, **options)

    async def search(self, vector: npt.ArrayLike, k: int, **options: Any) -> list[Hit]:
        """The ``k`` best items; see :meth:`Corpus.search`."""
        return await self._run(self.corpus.search, vector, k, **options)

    async def get(self, ids: Iterable[str], **options: Any) -> list[Item]:
        """Stored items by id; see :meth:`Corpus.get`."""
        return await self._run(self.corpus.get, ids, **options)

    async def delete(self, ids: Iterable[str], **options: Any) -> None:
        """Remove items; see :meth:`Corpus.delete`."""
        await self._run(self.corpus.delete, ids, **options)

    async def count(self, **options: Any) -> int:
        """Number of items; see :meth:`Corpus.count`."""
        return await self._run(self.corpus.count, **options)

    async def close(self) -> None:
        """Close the corpus; a caller that is cancelled leaves at once, and the corpus closes all the same."""
        closing = self._pool.submit(self.corpus.close)
        self._pool.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    async def __aenter__(self) -> AsyncCorpus:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *arguments, **options))
