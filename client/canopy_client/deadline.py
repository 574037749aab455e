"""One deadline type, from which every timeout is made: seconds for gRPC, microseconds for Triton's scheduler."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

from canopy_backend.errors import DeadlineExceeded, InvalidRequest

#: About three years: gRPC takes a far later moment for one that has passed.
LONGEST_S: Final = 1e8


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock after which nobody waits for the answer.

    Attributes:
        at_s: The moment, in seconds of :func:`time.monotonic`; infinite when there is none.
    """

    at_s: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The moment ``seconds`` from now; ``None``, and anything over :data:`LONGEST_S`, mean never.

        Raises:
            InvalidRequest: ``seconds`` is not a number.
        """
        if seconds is None:
            return cls()
        if not isinstance(seconds, int | float) or math.isnan(seconds):
            raise InvalidRequest(f"deadline: {seconds!r:.40} is not a number of seconds")
        return cls() if seconds > LONGEST_S else cls(time.monotonic() + seconds)

    def sooner(self, seconds: float | None) -> Deadline:
        """This deadline, or ``seconds`` from now where that comes first."""
        return Deadline(min(self.at_s, Deadline.after(seconds).at_s))

    def remaining_s(self) -> float:
        """Seconds left, 0 when it has passed."""
        return max(0.0, self.at_s - time.monotonic())

    def timeout_s(self, what: str = "call") -> float | None:
        """Seconds left as gRPC and HTTP clients take them; ``None`` when there is no deadline.

        Raises:
            DeadlineExceeded: Nothing is left.
        """
        if math.isinf(self.at_s):
            return None
        left = self.remaining_s()
        if left <= 0:
            raise DeadlineExceeded(f"{what}: the deadline passed before it was sent")
        return left

    def timeout_us(self) -> int | None:
        """Microseconds left as Triton's request parameter ``timeout`` takes them, at least 1; ``None`` for none."""
        return None if math.isinf(self.at_s) else max(1, int(self.remaining_s() * 1_000_000))
