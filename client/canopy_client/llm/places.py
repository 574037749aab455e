"""A bounded number of requests in flight: the rest wait here, within their deadlines, and not in the server's queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from canopy_backend.errors import DeadlineExceeded, InvalidRequest
from canopy_client.deadline import Deadline

#: Requests in flight of one client where nothing else is said: vLLM's own default holds more, a small server fewer.
PARALLEL: Final = 32


class Places:
    """Places for requests, given in the order in which they were asked for.

    Args:
        number: How many.

    Raises:
        InvalidRequest: There is none.
    """

    def __init__(self, number: int = PARALLEL) -> None:
        if number < 1:
            raise InvalidRequest(f"parallel: {number} is not more than 0")
        self._free = asyncio.Semaphore(number)

    @asynccontextmanager
    async def one(self, deadline: Deadline, what: str) -> AsyncIterator[None]:
        """Hold a place.

        Args:
            deadline: When the caller stops waiting, for the place as for the answer.
            what: Who waits, in the error.

        Raises:
            DeadlineExceeded: No place became free in time.
        """
        timeout = deadline.timeout_s(what)
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            raise DeadlineExceeded(f"{what}: no place among the requests in flight within {timeout:.1f} s") from None
        try:
            yield
        finally:
            self._free.release()
