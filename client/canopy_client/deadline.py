"""One deadline type, from which every timeout is made: seconds for gRPC, microseconds for Triton's scheduler."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from canopy_backend.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock after which nobody waits for the answer.

    Attributes:
        at_s: The moment, in seconds of :func:`time.monotonic`; infinite when there is none.
    """

    at_s: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The moment ``seconds`` from now; ``None`` means never."""
        return cls() if seconds is None else cls(time.monotonic() + seconds)

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
