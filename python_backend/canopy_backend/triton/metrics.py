"""The project's own metrics, in the server's registry beside its ``nv_*`` families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
STAGE_SECONDS: Final = "canopy_stage_seconds"
_STAGE_HELP: Final = "Time of one request in one stage"
_BUCKETS: Final = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Tally:
    """What the requests of one execution add up to; handed to the server once, as each hand-over costs a round trip."""

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


class Metrics:
    """The server's side of the tallies of one model instance.

    Args:
        stage: Label of the stage's histogram.
    """

    def __init__(self, stage: str) -> None:
        utils = pb_utils()
        kinds = utils.MetricFamily
        # A family lives as long as its object: keep them.
        self._families = {
            name: kinds(name=name, description=text, kind=kinds.COUNTER) for name, text in COUNTERS.items()
        }
        self._counters: dict[tuple[str, Labels], Any] = {}
        self._stage: Any = None
        # Servers before 24.09 have no histograms; their own durations remain.
        if hasattr(kinds, "HISTOGRAM"):
            family = kinds(name=STAGE_SECONDS, description=_STAGE_HELP, kind=kinds.HISTOGRAM)
            self._families[STAGE_SECONDS] = family
            self._stage = family.Metric(labels={"stage": stage}, buckets=_BUCKETS)

    def flush(self, tally: Tally) -> None:
        """Hand a tally over."""
        for key, amount in tally.counts.items():
            metric = self._counters.get(key)
            if metric is None:
                name, labels = key
                metric = self._counters[key] = self._families[name].Metric(labels=dict(labels))
            metric.increment(amount)
        if self._stage is not None:
            for seconds in tally.seconds:
                self._stage.observe(seconds)
