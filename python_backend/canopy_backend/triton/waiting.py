"""How long a request has waited between two steps of its ensemble, and when nobody should wait any longer.

The server bounds a queue only where it batches, and does not batch models without a batch axis. So the first step says
when it saw the request, and a later one refuses what has waited too long: a refusal costs a small part of an answer,
and the queue in front of that step stays as short as the server can work off in that time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from canopy_backend.errors import DeadlineExceeded, Overloaded
from canopy_backend.triton.tensors import Array

#: Tensor of the moment at which the first step saw the request: int64 ``[1]``, nanoseconds of the machine's monotonic
#: clock, which all of its processes share.
ARRIVAL: Final = "ARRIVAL"


def arrival() -> Array:
    """This moment as the tensor :data:`ARRIVAL`."""
    return np.array([time.monotonic_ns()], np.int64)


def check_wait(since: Array, *, timeout_us: int, longest_s: float) -> None:
    """Refuse a request that has waited too long.

    Args:
        since: Its :data:`ARRIVAL`.
        timeout_us: The time that its caller gave it in microseconds; 0 for none.
        longest_s: Longest wait in seconds.

    Raises:
        DeadlineExceeded: The caller's time is over.
        Overloaded: The server cannot keep up.
    """
    waited = (time.monotonic_ns() - int(since[0])) / 1e9
    if 0 < timeout_us < 1e6 * waited:
        raise DeadlineExceeded(f"the time of the request, {timeout_us / 1e6:g} s, was over before its turn came")
    if waited > longest_s:
        raise Overloaded(f"waited {waited:.2f} s for its turn; the limit is {longest_s:g} s (parameter max_wait_ms)")


def give_up_at(timeouts_us: Sequence[int]) -> float:
    """When nobody waits any more for what requests of one batch ask for, on the clock of :func:`time.monotonic`.

    The server does not tell the steps of an ensemble that a caller has gone. It hands on the time that the caller gave
    the request, so work for nobody ends by then, counted from its start here.

    Args:
        timeouts_us: Each request's time in microseconds; 0 for one without a bound.
    """
    return time.monotonic() + max(timeouts_us) / 1e6 if timeouts_us and min(timeouts_us) > 0 else math.inf
