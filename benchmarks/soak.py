"""Many requests in a row, none like the one before it, and the memory meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from benchmarks import load, memory
from benchmarks.growth import drift
from benchmarks.results import Soak

#: Samples over the whole run, about.
_SAMPLES = 200
_EVERY_S = (0.05, 5.0)


def soak(call: Callable[[int], object], pid: int, *, requests: int, in_flight: int) -> Soak:
    """Send ``requests`` requests.

    Args:
        call: Sends one; gets its number.
        pid: The server's process.
        requests: How many.
        in_flight: How many at a time.
    """
    lock = threading.Lock()
    sent = 0
    start = time.perf_counter()
    call(0)
    expected = (time.perf_counter() - start) * requests / in_flight
    every = min(max(expected / _SAMPLES, _EVERY_S[0]), _EVERY_S[1])
    with memory.sampled(pid, every) as sampler:

        def one() -> None:
            nonlocal sent
            with lock:
                number, sent = sent, sent + 1
            call(number)
            with lock:
                sampler.answered += 1

        figures = load.run_closed_loop(one, concurrency=in_flight, requests=requests)
    samples = sampler.samples
    series = {"all processes": samples.total(), "/dev/shm": samples.shm, **samples.resident}
    drifts = {name: drift(samples.requests, values) for name, values in series.items()}
    return Soak(requests, figures.requests_per_s, samples, drifts)
