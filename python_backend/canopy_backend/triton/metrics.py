"""The project's own metrics, in the server's registry beside its ``nv_*`` families.

Each change of a metric is a round trip from the model's process to the server, as dear as a good part of a request.
So requests only add up numbers here, and a thread hands the sums over every second.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, TypeAlias

from canopy_backend.triton.backend import pb_utils

#: Counter families: name, help. Label sets are tiny: modality and outcome, code, none.
COUNTERS: Final[dict[str, str]] = {
    "canopy_items_total": "Items compressed, by modality and by whether anything was dropped",
    "canopy_nodes_total": "Nodes scored",
    "canopy_tokens_in_total": "Reader tokens of the items that came in",
    "canopy_tokens_kept_total": "Reader tokens of the evidence that went out",
    "canopy_errors_total": "Requests that were answered with an error, by code",
}
#: The time of a request in a stage, in the series of a Prometheus histogram. They are counters to the server, whose own
#: histograms take one observation a round trip.
STAGE_SECONDS: Final = "canopy_stage_seconds"
STAGE_FAMILIES: Final[dict[str, str]] = {
    f"{STAGE_SECONDS}_bucket": "Requests that took at most so many seconds in one stage",
    f"{STAGE_SECONDS}_sum": "Seconds of all requests in one stage",
    f"{STAGE_SECONDS}_count": "Requests in one stage",
}
#: Upper bounds of the buckets in seconds; what is longer counts only in the last, which has no bound.
BUCKETS: Final = (
    *(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
#: Seconds between two hand-overs.
PERIOD_S: Final = 1.0

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Tally:
    """What requests add up to.

    Attributes:
        counts: Amounts by family and labels.
        seconds: How long each request took.
    """

    counts: Counter[tuple[str, Labels]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter of :data:`COUNTERS`."""
        self.counts[name, tuple(labels.items())] += amount

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure one request."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds.append(perf_counter() - start)


def stage_counts(stage: str, seconds: Sequence[float]) -> dict[tuple[str, Labels], float]:
    """What the series of :data:`STAGE_SECONDS` grow by; buckets are cumulative, those that do not grow are left out."""
    label = ("stage", stage)
    reached = Counter(bisect_left(BUCKETS, one) for one in seconds)
    grown: dict[tuple[str, Labels], float] = {}
    below = 0
    for place, bound in enumerate(_BOUNDS):
        below += reached[place]
        if below:
            grown[f"{STAGE_SECONDS}_bucket", (label, ("le", bound))] = below
    if seconds:
        grown[f"{STAGE_SECONDS}_sum", (label,)] = sum(seconds)
        grown[f"{STAGE_SECONDS}_count", (label,)] = len(seconds)
    return grown


class Metrics:
    """The server's side of the tallies of one model instance.

    Args:
        stage: Label of the stage's histogram.
        period_s: Seconds between two hand-overs to the server.
    """

    def __init__(self, stage: str, period_s: float = PERIOD_S) -> None:
        kinds = pb_utils().MetricFamily
        self._stage = stage
        self._period_s = period_s
        # A family lives as long as its object: keep them.
        self._families = {
            name: kinds(name=name, description=text, kind=kinds.COUNTER)
            for name, text in (COUNTERS | STAGE_FAMILIES).items()
        }
        self._metrics: dict[tuple[str, Labels], Any] = {}
        for bound in _BOUNDS:  # a histogram has all its buckets from the start
            self._metric(f"{STAGE_SECONDS}_bucket", (("stage", stage), ("le", bound)))
        self._lock = threading.Lock()
        self._pending = Tally()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canopy-metrics", daemon=True)
        self._thread.start()

    def flush(self, tally: Tally) -> None:
        """Take a tally; the server has it within the period."""
        with self._lock:
            self._pending.counts.update(tally.counts)
            self._pending.seconds += tally.seconds

    def close(self) -> None:
        """Hand over what is left, and end the thread."""
        self._closed.set()
        self._thread.join(timeout=10 * self._period_s)

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            self._hand_over()
        self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            tally, self._pending = self._pending, Tally()
        for (name, labels), amount in (tally.counts | stage_counts(self._stage, tally.seconds)).items():
            self._metric(name, labels).increment(amount)

    def _metric(self, name: str, labels: Labels) -> Any:
        metric = self._metrics.get((name, labels))
        if metric is None:
            metric = self._metrics[name, labels] = self._families[name].Metric(labels=dict(labels))
        return metric
