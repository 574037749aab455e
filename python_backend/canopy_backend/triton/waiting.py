"""How long a request has waited between two steps of its ensemble, and when nobody should wait any longer.

The server bounds a queue only where it batches, and does not batch models without a batch axis. So the first step says
when it saw the request, and a later one refuses what has waited too long: a refusal costs a small part of an answer,
and the queue in front of that step stays as short as the server can work off in that time. With encoders that see
pixels, that step is the one that looks at pictures, and only what it would have to look at is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from canopy_backend.errors import DeadlineExceeded, ExportError, Overloaded
from canopy_backend.triton.tensors import Array

#: Tensor of the moment at which the first step saw the request: int64 ``[1]``, nanoseconds of the machine's monotonic
#: clock, which all of its processes share.
ARRIVAL: Final = "ARRIVAL"
#: Parameter of a model that refuses what has waited longer for it, in milliseconds.
MAX_WAIT: Final = "max_wait_ms"


def arrival() -> Array:
    """This moment as the tensor :data:`ARRIVAL`."""
    return np.array([time.monotonic_ns()], np.int64)


def waited_s(since: Array) -> float:
    """Seconds since an :data:`ARRIVAL`."""
    return (time.monotonic_ns() - int(since[0])) / 1e9


def check_wait(waited: float, *, timeout_us: int, longest_s: float) -> None:
    """Refuse a request that has waited too long.

    Args:
        waited: Seconds since its :data:`ARRIVAL`.
        timeout_us: The time that its caller gave it in microseconds; 0 for none.
        longest_s: Longest wait in seconds.

    Raises:
        DeadlineExceeded: The caller's time is over.
        Overloaded: The server cannot keep up.
    """
    if 0 < timeout_us < 1e6 * waited:
        raise DeadlineExceeded(f"the time of the request, {timeout_us / 1e6:g} s, was over before its turn came")
    if waited > longest_s:
        raise Overloaded(f"waited {waited:.2f} s for its turn; the limit is {longest_s:g} s (parameter {MAX_WAIT})")


def longest_wait_s(parameters: Mapping[str, str]) -> float:
    """The longest wait for a model's turn in seconds, of the model's parameters.

    Raises:
        ExportError: The parameter is missing, or not a number of milliseconds.
    """
    value = parameters.get(MAX_WAIT, "")
    if not value.isdecimal():
        raise ExportError(f"parameter {MAX_WAIT}: {value!r:.40} is not a number of milliseconds; run the export again")
    return int(value) / 1000


def give_up_at(timeouts_us: Sequence[int], waited: float = 0.0) -> float:
    """When nobody waits any more for what requests of one batch ask for, on the clock of :func:`time.monotonic`.

    The server does not tell the steps of an ensemble that a caller has gone. It hands on the time that the caller gave
    the request, so work for nobody ends by then, counted from its arrival where that is known.

    Args:
        timeouts_us: Each request's time in microseconds; 0 for one without a bound.
        waited: Seconds since its arrival.
    """
    bounded = timeouts_us and min(timeouts_us) > 0
    return time.monotonic() + max(timeouts_us) / 1e6 - waited if bounded else math.inf
