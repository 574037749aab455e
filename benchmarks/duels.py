"""The ratios' sides, measured in turn: each round goes through all of them, so that what the machine does hits all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.encoder import NodeEncoder, Repository, best_chunk, inputs_of, run_session
from benchmarks.extent import Extent
from benchmarks.generator import Generator
from benchmarks.peers.contenders import CONTENDERS, FILTERS, NODES, STATIC
from benchmarks.results import Side
from benchmarks.rivals import Rivals, p50_ms
from benchmarks.timing import seconds
from canopy_backend.encoding import plan_items
from canopy_backend.items import Item
from canopy_local.locking import Report

#: The served method among the sides, and the same where every query is new to the server.
OWN, OWN_NEW = "canopy", "canopy_new"
#: Requests at once where throughput is compared.
AT_ONCE = 4

#: Names of what encodes.
TRITON, SERVED, SESSION, LIBRARY = "triton", "served", "session", "sentence_transformers"


def warm(
    generator: Generator, rivals: Rivals, query: str, items: Sequence[Item], extent: Extent, report: Report
) -> dict[str, Side]:
    """Items with trees beside every contender."""
    labels = {one.name: one.label for one in CONTENDERS if one.name in rivals.names}
    sides = {OWN: Side("CANOPY, items with trees"), OWN_NEW: Side("CANOPY, the same, every query new (Python client)")}
    sides |= {name: Side(label) for name, label in labels.items()}
    for number in range(extent.rounds):
        report(f"with trees, beside peers: round {number + 1} of {extent.rounds}")
        one = generator.compress(query, items, in_flight=1, requests=extent.warm_requests)
        many = generator.compress(query, items, in_flight=AT_ONCE, requests=extent.warm_requests)
        sides[OWN].p50_ms.append(one.p50_ms)
        sides[OWN].per_s.append(many.requests_per_s)
        sides[OWN_NEW].p50_ms.append(generator.compress_new(query, items, requests=extent.warm_requests).p50_ms)
        for name in labels:
            repeats = extent.slow_repeats if name == NODES else extent.repeats
            _peer(sides[name], rivals, name, query, items, repeats, at_once=name in (*FILTERS, STATIC))
    return sides


def cold(
    generator: Generator,
    rivals: Rivals,
    query: str,
    items: Sequence[Item],
    extent: Extent,
    report: Report,
    label: str,
) -> dict[str, Side]:
    """Items without trees beside the two filters."""
    sides = {OWN: Side(f"CANOPY, cold items, {label}")}
    sides |= {one.name: Side(one.label) for one in CONTENDERS if one.name in rivals.names and one.name in FILTERS}
    for number in range(extent.rounds):
        report(f"cold, {label}, beside peers: round {number + 1} of {extent.rounds}")
        figures = generator.compress(query, items, in_flight=1, requests=extent.cold_requests)
        sides[OWN].p50_ms.append(figures.p50_ms)
        for name in (name for name in sides if name != OWN):
            _peer(sides[name], rivals, name, query, items, extent.repeats, at_once=False)
    return sides


def throughput(
    url: str, repository: Repository, rivals: Rivals, items: Sequence[Item], extent: Extent, report: Report
) -> dict[str, list[float]]:
    """Tokens a second of everyone who encodes, on the sentences of ``items``."""
    texts = repository.sentences(items)
    inputs = inputs_of(texts.rows)
    served, session = repository.served(), repository.session()
    chunk = best_chunk(session, inputs)
    encoder = NodeEncoder(url)
    calls = {
        TRITON: lambda: encoder.run(inputs),
        SERVED: lambda: served(inputs),
        SESSION: lambda: run_session(session, inputs, chunk),
    }
    calls |= {name: lambda server=server: server.embed(texts.texts) for name, server in rivals.servers.items()}
    found: dict[str, list[float]] = {}
    try:
        for call in calls.values():
            call()
        for number in range(extent.rounds):
            report(f"encoders: round {number + 1} of {extent.rounds}")
            for name, call in calls.items():
                taken = float(np.median(seconds(call, extent.slow_repeats)))
                found.setdefault(name, []).append(texts.tokens / taken)
            if rivals.names:
                taken = float(np.median(rivals.encode(texts.texts, repeats=extent.slow_repeats)))
                found.setdefault(LIBRARY, []).append(texts.tokens / taken)
    finally:
        encoder.close()
    return found


def indexing(
    generator: Generator, repository: Repository, items: Sequence[Item], extent: Extent, report: Report
) -> tuple[list[float], list[float]]:
    """Encoder tokens a second through ``index``, and of the served session on the same node rows, one a round.

    The tokens of ``index`` are those of the nodes and those of whole items for the retrieval encoder.
    """
    rows, real = repository.planned(items)
    whole = sum(map(len, plan_items(items, repository.tokenizer).sequences))
    inputs, served = inputs_of(rows), repository.served()
    served(inputs)
    generator.client.index(items)
    through, alone = [], []
    for number in range(extent.rounds):
        report(f"indexing: round {number + 1} of {extent.rounds}")
        (taken,) = seconds(lambda: generator.client.index(items), 1)
        through.append((real + whole) / taken)
        (taken,) = seconds(lambda: served(inputs), 1)
        alone.append(real / taken)
    return through, alone


def _peer(
    side: Side, rivals: Rivals, name: str, query: str, items: Sequence[Item], repeats: int, *, at_once: bool
) -> None:
    """One round of one contender, after a call that does not count."""
    rivals.compress(name, query, items, repeats=1)
    alone = rivals.compress(name, query, items, repeats=repeats)
    side.p50_ms.append(p50_ms(alone))
    if at_once:
        together = rivals.compress(name, query, items, repeats=max(repeats, AT_ONCE), at_once=AT_ONCE)
        # Whichever is the peer's better way: several threads, or one call after the other.
        side.per_s.append(max(max(repeats, AT_ONCE) / together["elapsed"], repeats / alone["elapsed"]))
