"""How long a run is: everything that `--quick` shortens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Extent:
    """Sizes of a run.

    Attributes:
        rounds: Times that each side of a ratio is measured, in turn; the median counts.
        curve_rounds: The same of each point of a curve.
        growth_rounds: The same of growing requests.
        questions, items: Of the workload.
        judged: Questions on which kept tokens and recall are counted.
        warm_requests, cold_requests, query_requests: Requests in one of perf_analyzer's three windows.
        repeats: Calls of a peer in a round.
        slow_repeats: The same of what takes a second and more.
        in_flight: Requests in flight for items with trees.
        other_in_flight: The same of the other calls.
        by_items, by_fragments: Sizes of growing requests.
        cold_items, cold_fragments: Largest size that is measured without trees.
        texts: Items whose sentences the encoders get.
        indexed: Items that are indexed in a round.
        soak: Requests in a row.
        flood: Requests at once.
        all_servers: Whether vLLM is started too, which takes a minute.
    """

    rounds: int
    curve_rounds: int
    growth_rounds: int
    questions: int
    items: int
    judged: int
    warm_requests: int
    cold_requests: int
    query_requests: int
    repeats: int
    slow_repeats: int
    in_flight: tuple[int, ...]
    other_in_flight: tuple[int, ...]
    by_items: tuple[int, ...]
    by_fragments: tuple[int, ...]
    cold_items: int
    cold_fragments: int
    texts: int
    indexed: int
    soak: int
    flood: int
    all_servers: bool


FULL = Extent(
    rounds=3,
    curve_rounds=3,
    growth_rounds=7,
    questions=100,
    items=500,
    judged=100,
    warm_requests=300,
    cold_requests=4,
    query_requests=200,
    repeats=20,
    slow_repeats=3,
    in_flight=(1, 2, 4, 8, 16, 32, 64),
    other_in_flight=(1, 2, 4),
    by_items=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    by_fragments=(1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000, 2000),
    cold_items=64,
    cold_fragments=2000,
    texts=40,
    indexed=40,
    soak=10_000,
    flood=3000,
    all_servers=True,
)
QUICK = Extent(
    rounds=3,
    curve_rounds=1,
    growth_rounds=3,
    questions=10,
    items=50,
    judged=6,
    warm_requests=60,
    cold_requests=1,
    query_requests=40,
    repeats=3,
    slow_repeats=1,
    in_flight=(1, 4, 16),
    other_in_flight=(1, 2),
    by_items=(2, 4, 8),
    by_fragments=(8, 32, 64),
    cold_items=8,
    cold_fragments=64,
    texts=10,
    indexed=10,
    soak=500,
    flood=2000,
    all_servers=False,
)
