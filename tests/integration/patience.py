"""Waiting for what happens elsewhere, in another task, thread or process: by looking, never by a guess at how long.

The bound is there to end a test that hangs. It says nothing about how fast anything should be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: Seconds that a test waits for anything; a hundred times what the slowest of it takes on a machine without other work.
PATIENCE_S = 120.0


def eventually(check: Callable[[], bool], what: str = "", *, pause_s: float = 0.1) -> None:
    """Wait in this thread until a check holds."""
    until = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < until, what
        time.sleep(pause_s)


async def soon(check: Callable[[], bool], what: str = "") -> None:
    """Wait in this task until a check holds."""
    until = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < until, what
        await asyncio.sleep(0.005)
