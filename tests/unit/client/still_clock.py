"""Time that passes while everybody sleeps and stands still while anybody works: deadlines on any machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from canopy_client import deadline, orchestrator, run


@contextmanager
def still_clock(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the running event loop and the client's deadlines such a clock."""
    loop: Any = asyncio.get_running_loop()
    now = [time.monotonic()]
    select = loop._selector.select

    def sleep(timeout: float | None) -> Any:
        events = select(0 if timeout is None or timeout > 0 else timeout)
        if events or timeout is None:
            return events or select(timeout)
        now[0] += timeout
        return events

    with patch.context() as within:
        within.setattr(loop._selector, "select", sleep)
        within.setattr(loop, "time", lambda: now[0])
        for module in (deadline, orchestrator, run):
            within.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        yield
