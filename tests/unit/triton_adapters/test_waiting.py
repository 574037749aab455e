"""A request that waited too long for a step is refused there, by its caller's time or by the server's."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from canopy_backend.errors import DeadlineExceeded, ExportError, Overloaded
from canopy_backend.triton.waiting import arrival, check_wait, give_up_at, longest_wait_s, waited_s


def ago(seconds: float) -> float:
    """The wait of a request that came so many seconds ago."""
    return waited_s(arrival() - np.int64(seconds * 1e9))


def test_arrival_is_one_moment_of_the_machines_clock() -> None:
    before = time.monotonic_ns()
    moment = arrival()
    assert (moment.shape, moment.dtype) == ((1,), np.int64)
    assert before <= int(moment[0]) <= time.monotonic_ns()


@pytest.mark.parametrize("timeout_us", [0, 600_000_000])
def test_whoever_is_in_time_passes(timeout_us: int) -> None:
    check_wait(ago(0.5), timeout_us=timeout_us, longest_s=600.0)


def test_a_long_wait_is_the_servers_fault() -> None:
    with pytest.raises(Overloaded, match=r"waited 2\.\d\d s .* limit is 1 s \(parameter max_wait_ms\)"):
        check_wait(ago(2), timeout_us=0, longest_s=1.0)


def test_the_callers_time_comes_first() -> None:
    with pytest.raises(DeadlineExceeded, match=r"0\.25 s, was over"):
        check_wait(ago(2), timeout_us=250_000, longest_s=1.0)


def test_what_a_request_waited_is_taken_off_its_time() -> None:
    assert give_up_at([60_000_000]) - give_up_at([60_000_000], 20.0) == pytest.approx(20, abs=10)
    assert give_up_at([0], 20.0) == math.inf


@pytest.mark.parametrize("parameters", [{}, {"max_wait_ms": "1 s"}, {"max_wait_ms": "-1"}])
def test_a_limit_that_is_none_stops_the_model(parameters: dict[str, str]) -> None:
    assert longest_wait_s({"max_wait_ms": "2500"}) == 2.5
    with pytest.raises(ExportError, match="max_wait_ms"):
        longest_wait_s(parameters)
