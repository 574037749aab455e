"""Times of calls in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def seconds(call: Callable[[], object], repeats: int) -> list[float]:
    """Wall clock of each of ``repeats`` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median of ``repeats`` calls after one that does not count, in milliseconds."""
    call()
    return float(np.median(seconds(call, repeats)) * 1000)


def best_ms(call: Callable[[], object], repeats: int) -> float:
    """The fastest of ``repeats`` calls after one that does not count, in milliseconds.

    For what others are held against: nothing else on the machine can make it look slow.
    """
    call()
    return min(seconds(call, repeats)) * 1000


def cpu_ms(call: Callable[[], object], repeats: int) -> float:
    """Median processor time of this process in ``repeats`` calls after one that does not count, in milliseconds.

    Hardly depends on what else the machine does.
    """
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times)) * 1000
