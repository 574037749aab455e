"""What became of each call, and what that says of a stretch of time; in columns, so that hours of it stay small."""

from __future__ import annotations

import re
import threading
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

Outcome = Literal["right", "rounded", "retryable", "wrong", "lost"]
#: ``right``: the answer that was recorded before, byte for byte. ``rounded``: the same but for the last digits of
#: scores and vectors. ``retryable``: an error that says to send again. ``wrong``: another answer, or an error that does
#: not say so. ``lost``: no answer within the deadline.
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
#: Characters of an error's text that are kept, and how many different texts.
_DETAIL_CHARACTERS: Final = 200
_MOST_DETAILS: Final = 5000
_NUMBERS: Final = re.compile(r"\d{4,}|\d+\.\d+(?!\.)(?= s\b)")


def _short(detail: str) -> str:
    """An error's text on one line, without numbers of ports and processes, so that like errors are counted together."""
    return _NUMBERS.sub("N", " ".join(detail.split()))[:_DETAIL_CHARACTERS]


class Stretch(msgspec.Struct, frozen=True):
    """The calls that were sent within a stretch of time.

    Attributes:
        kinds: Names of the kinds of calls.
        kind: Place of each call's kind in ``kinds``, ``[n]``.
        sent, ended: When, in seconds of :func:`time.monotonic`, ``[n]``.
        outcome: Place of each call's outcome in :data:`OUTCOMES`, ``[n]``.
        details: How often each error was seen.
    """

    kinds: tuple[str, ...]
    kind: npt.NDArray[np.uint8]
    sent: npt.NDArray[np.float64]
    ended: npt.NDArray[np.float64]
    outcome: npt.NDArray[np.uint8]
    details: dict[str, int]

    def count(self, outcome: Outcome) -> int:
        """Calls that ended so."""
        return int(np.count_nonzero(self.outcome == OUTCOMES.index(outcome)))

    def of(self, kind: str) -> Stretch:
        """The calls of one kind; details are not told apart."""
        mine = self.kind == self.kinds.index(kind)
        return Stretch(self.kinds, self.kind[mine], self.sent[mine], self.ended[mine], self.outcome[mine], self.details)

    def recovery_s(self, fault_s: float) -> float | None:
        """Seconds from a fault until every kind of call is answered rightly again; ``None`` where one is not.

        A kind is well again with the first right answer to a call that was sent after the fault and after the last of
        its calls that failed had ended.

        Args:
            fault_s: When the fault began.
        """
        worst = 0.0
        for number in np.unique(self.kind):
            mine = self.kind == number
            sent, ended, right = self.sent[mine], self.ended[mine], self.outcome[mine] <= OUTCOMES.index("rounded")
            failed = ended[~right & (ended >= fault_s)]
            since = max(fault_s, float(failed.max(initial=fault_s)))
            well = ended[right & (sent >= since)]
            if not len(well):
                return None
            worst = max(worst, float(well.min()) - fault_s)
        return worst


class Calls:
    """A growing record of calls; safe to use from many threads.

    Args:
        kinds: Names of the kinds of calls.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        self._lock = threading.Lock()
        self._kind, self._outcome = array("B"), array("B")
        self._sent, self._ended = array("d"), array("d")
        self._details: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._kind)

    def add(self, kind: str, sent: float, ended: float, outcome: Outcome, detail: str = "") -> None:
        """Keep what became of a call."""
        with self._lock:
            self._kind.append(self.kinds.index(kind))
            self._outcome.append(OUTCOMES.index(outcome))
            self._sent.append(sent)
            self._ended.append(ended)
            if detail and len(self._details) < _MOST_DETAILS:
                self._details.append((sent, f"{outcome} {kind}: {_short(detail)}"))

    def between(self, start: float, end: float) -> Stretch:
        """The calls that were sent in ``[start, end)`` and have ended."""
        with self._lock:
            kind, outcome = np.array(self._kind, np.uint8), np.array(self._outcome, np.uint8)
            sent, ended = np.array(self._sent, np.float64), np.array(self._ended, np.float64)
            details = Counter(text for at, text in self._details if start <= at < end)
        within = (sent >= start) & (sent < end)
        return Stretch(self.kinds, kind[within], sent[within], ended[within], outcome[within], dict(details))
