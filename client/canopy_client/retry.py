"""When a call may be sent again: the server says so by its status, the call can be repeated, and time is left."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from canopy_backend.errors import CanopyError, Overloaded, ServerUnavailable
from canopy_client.deadline import Deadline

T = TypeVar("T")

#: UNAVAILABLE and RESOURCE_EXHAUSTED: the server did not do the work and another attempt can succeed.
RETRIED = (ServerUnavailable, Overloaded)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounded attempts with growing, jittered pauses.

    Attributes:
        attempts: Most times that a call is sent, the first included.
        first_pause_s: Longest pause before the second attempt; doubles with each further one.
        max_pause_s: Longest pause of all.
    """

    attempts: int = 4
    first_pause_s: float = 0.1
    max_pause_s: float = 2.0

    def pause_s(self, error: CanopyError, attempt: int, deadline: Deadline) -> float | None:
        """Seconds to wait before sending again, or ``None`` to give up.

        Args:
            error: What the last attempt raised.
            attempt: Attempts made so far, from 1.
            deadline: The caller's; a pause that would outlast it is not begun.
        """
        if not isinstance(error, RETRIED) or attempt >= self.attempts:
            return None
        longest = min(self.max_pause_s, self.first_pause_s * 2 ** (attempt - 1))
        # From half to whole, so that clients that failed together do not come back together.
        pause = longest * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secrecy
        return pause if pause < deadline.remaining_s() else None

    def run(self, call: Callable[[], T], deadline: Deadline) -> T:
        """Make an idempotent call until it succeeds or must not be repeated."""
        attempt = 1
        while True:
            try:
                return call()
            except CanopyError as error:
                pause = self.pause_s(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)

    async def run_async(self, call: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """:meth:`run` for coroutines."""
        attempt = 1
        while True:
            try:
                return await call()
            except CanopyError as error:
                pause = self.pause_s(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)
