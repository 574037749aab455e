"""Throughput and latency by requests in flight, and cost by the size of a request."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks import counts, load, workload
from benchmarks.encoder import Repository
from benchmarks.extent import Extent
from benchmarks.generator import Generator
from benchmarks.results import Curve, Merging, Size
from benchmarks.timing import median_ms, seconds
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Item
from canopy_local.locking import Report

#: Sentences of each item where items grow.
_SENTENCES = workload.SENTENCES
#: Time that the calls of one point may take together in a round; one that takes longer is made once.
_CALLS_MS = 200.0


def by_load(
    generator: Generator,
    query: str,
    queries: Sequence[str],
    warm: Sequence[Item],
    cold: Sequence[Item],
    extent: Extent,
    report: Report,
) -> list[Curve]:
    """Every call by requests in flight, medians of the rounds."""
    measured: dict[str, tuple[int, tuple[int, ...], Callable[[int], load.Figures]]] = {
        "compress, with trees": (
            len(warm),
            extent.in_flight,
            lambda at: generator.compress(query, warm, in_flight=at, requests=extent.warm_requests),
        ),
        "compress, cold": (
            len(cold),
            extent.other_in_flight,
            lambda at: generator.compress(query, cold, in_flight=at, requests=extent.cold_requests),
        ),
        "index": (
            len(cold),
            extent.other_in_flight,
            lambda at: generator.index(cold, in_flight=at, requests=extent.cold_requests),
        ),
        "embed_query, seen": (
            1,
            extent.other_in_flight,
            lambda at: generator.embed_seen(query, in_flight=at, requests=extent.query_requests),
        ),
        "embed_query, new": (
            1,
            extent.other_in_flight,
            lambda at: generator.embed_new(queries, in_flight=at, requests=extent.query_requests),
        ),
    }
    curves = []
    for label, (items, in_flight, measure) in measured.items():
        report(f"curve: {label}")
        rows = [load.median_of([measure(at) for _ in range(extent.curve_rounds)]) for at in in_flight]
        curves.append(Curve(label, items, rows))
    return curves


def by_items(generator: Generator, repository: Repository, query: str, extent: Extent, report: Report) -> list[Size]:
    """Cost of a request by its items, each of eight sentences; seen from the client, which splits large ones."""
    sizes = {count: workload.sized(count, _SENTENCES) for count in extent.by_items}
    return _sizes(generator, repository, query, sizes, extent.cold_items, extent.growth_rounds, report)


def by_fragments(
    generator: Generator, repository: Repository, query: str, extent: Extent, report: Report
) -> list[Size]:
    """Cost of one item by its fragments."""
    sizes = {count: workload.sized(1, count) for count in extent.by_fragments}
    return _sizes(generator, repository, query, sizes, extent.cold_fragments, extent.growth_rounds, report)


def merging(
    generator: Generator, queries: Sequence[str], cold: Sequence[Item], *, in_flight: int, each: int
) -> list[Merging]:
    """What the dynamic batcher merges of cold calls with few items and of new queries, sent at once."""
    url = generator.client.url
    # An item a call, different ones, so that rows of different requests meet in the batcher.
    turn, lock = itertools.cycle(cold), threading.Lock()

    def compress() -> None:
        with lock:
            item = next(turn)
        generator.client.compress(generator.new(queries[0]), [item])

    def embed() -> None:
        generator.client.embed_query([generator.new(queries[0])])

    loads: dict[str, Callable[[], None]] = {"compress, one cold item a call": compress, "embed_query, new": embed}
    found = []
    for label, call in loads.items():
        before = counts.counts(url)
        load.run_closed_loop(call, concurrency=in_flight, requests=in_flight * each)
        added = counts.since(before, counts.counts(url))
        models = {name: count for name, count in added.items() if name in ("node_encoder", "query_encoder")}
        found.append(Merging(label, in_flight, models))
    return found


def _sizes(
    generator: Generator,
    repository: Repository,
    query: str,
    sizes: Mapping[int, Sequence[Item]],
    most_cold: int,
    rounds: int,
    report: Report,
) -> list[Size]:
    """All sizes in every round, ascending: those which are compared meet the machine in the same state."""
    client = generator.client
    found = []
    for size, items in sizes.items():
        tokens = sum(repository.planned([item])[1] for item in items)
        depth = max(int(balanced(len(fragment(item))).depth.max()) for item in items)
        found.append(Size(size, tokens, depth, [], [], []))
    warm = {size: workload.with_trees(client, items) for size, items in sizes.items()}
    for turn in range(rounds):
        report(f"growth: {len(found)} sizes, round {turn + 1} of {rounds}")
        for one in found:
            one.index_ms.append(_typical_ms(partial(client.index, sizes[one.size])))
        for one in found:
            one.tree_ms.append(_typical_ms(partial(client.compress, query, warm[one.size])))
        for one in found:
            if one.size <= most_cold:
                one.cold_ms.append(_typical_ms(partial(client.compress, query, sizes[one.size])))
    return found


def _typical_ms(call: Callable[[], object]) -> float:
    """One call where it takes long, else the median of several: neighbours should stand close to one another."""
    first = seconds(call, 1)[0] * 1000
    return first if first > _CALLS_MS else median_ms(call, max(3, min(30, int(_CALLS_MS / first))))
