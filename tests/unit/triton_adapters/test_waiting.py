"""A request that waited too long for a step is refused there, by its caller's time or by the server's."""

from __future__ import annotations

import time

import numpy as np
import pytest

from canopy_backend.errors import DeadlineExceeded, Overloaded
from canopy_backend.triton.waiting import arrival, check_wait


def ago(seconds: float) -> np.ndarray:
    return arrival() - np.int64(seconds * 1e9)


def test_arrival_is_one_moment_of_the_machines_clock() -> None:
    before = time.monotonic_ns()
    moment = arrival()
    assert (moment.shape, moment.dtype) == ((1,), np.int64)
    assert before <= int(moment[0]) <= time.monotonic_ns()


@pytest.mark.parametrize("timeout_us", [0, 5_000_000])
def test_whoever_is_in_time_passes(timeout_us: int) -> None:
    check_wait(ago(0.5), timeout_us=timeout_us, longest_s=1.0)


def test_a_long_wait_is_the_servers_fault() -> None:
    with pytest.raises(Overloaded, match=r"waited 2\.\d\d s .* limit is 1 s \(parameter max_wait_ms\)"):
        check_wait(ago(2), timeout_us=0, longest_s=1.0)


def test_the_callers_time_comes_first() -> None:
    with pytest.raises(DeadlineExceeded, match=r"0\.25 s, was over"):
        check_wait(ago(2), timeout_us=250_000, longest_s=1.0)
