"""The load bench of the evidence server, with its peers in the same run; ``make bench`` and ``make bench-quick``.

Starts servers of its own on free ports, so that nothing else answers. Prints the page, and writes it with its figures
to ``docs/results`` with ``--write``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import curves, duels, inprocess, load, workload
from benchmarks.encoder import Repository
from benchmarks.extent import FULL, QUICK, Extent
from benchmarks.figures import draw
from benchmarks.flood import flood
from benchmarks.generator import Generator, generator
from benchmarks.machine import machine, settings_of
from benchmarks.page import FIGURES, page
from benchmarks.peers.serving import INFINITY, SERVERS
from benchmarks.quality import judge
from benchmarks.results import Results, Setup
from benchmarks.rivals import Rivals
from benchmarks.server import Server, evidence
from benchmarks.soak import soak
from canopy_backend.items import Item
from canopy_export.example import example_model
from canopy_local.settings import StackSettings

PAGE: Final = workload.ROOT / "docs" / "results" / "performance.md"
JSON_FILE: Final = "results.json"
#: Requests in flight while memory is watched, and while the batcher's merging is counted.
_SOAK_AT, _MERGING_AT = 4, 8
_MERGING_EACH = 4


def main() -> None:
    """Measure, or take an earlier run's results, and print the page."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers are ended on the way out
    home = StackSettings.from_environment().home / "bench"
    if options.again is not None:
        results = msgspec.json.decode(options.again.read_bytes(), type=Results)
        if options.growth:
            grow_again(results, options.data, FULL)
            _keep(results, home)
    else:
        start = time.monotonic()
        results = measure(options.data, home, QUICK if options.quick else FULL, options.threads)
        _report(f"took {time.monotonic() - start:.0f} s")
        _keep(results, home)
    if options.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        names = draw(results, PAGE.parent / FIGURES)
        PAGE.write_text(page(results, names), encoding="utf-8")
    print(page(results, []))


def measure(data: Path | None, home: Path, extent: Extent, threads: int) -> Results:
    """A whole run.

    Args:
        data: Folder of question sets, or ``None``.
        home: Folder for what is kept between runs.
        extent: How long.
        threads: Threads of every peer's encoder.
    """
    work = workload.build(data, questions=extent.questions, items=extent.items)
    model = StackSettings.from_environment().model or example_model()
    kinds = SERVERS if extent.all_servers else (INFINITY,)
    _report("starting the peers")
    with Rivals(model, home, threads=threads, servers=kinds) as rivals, tempfile.TemporaryDirectory() as folder:
        with evidence("separate", _report) as server, generator(server.url, Path(folder)) as requests:
            results = _separate(server, requests, rivals, work, extent, threads)
            _keep(results, home)  # so that half an hour is not lost with what comes after it
        with evidence("contextual", _report) as server, generator(server.url, Path(folder)) as requests:
            query, items = work.questions[0].question, workload.passages()
            repository = Repository(server.repository)
            results.padding["contextual"] = inprocess.padding(repository, work.items)
            results.contextual = duels.cold(requests, rivals, query, items, extent, _report, "contextual")
        results.not_run |= rivals.absent
    if not extent.all_servers:
        results.not_run[SERVERS[-1].label] = "takes a minute to start; `make bench` runs it"
    return results


def _separate(
    server: Server, requests: Generator, rivals: Rivals, work: workload.Workload, extent: Extent, threads: int
) -> Results:
    """Everything on the server with the default encoding."""
    repository, query = Repository(server.repository), work.questions[0].question
    queries = [question.question for question in work.questions]
    cold = workload.passages()
    warm = workload.with_trees(requests.client, cold)
    results = Results(_setup(server, repository, rivals, work, warm, extent, threads))
    # What is held against each other comes first, while nothing has grown.
    results.warm = duels.warm(requests, rivals, query, warm, extent, _report)
    results.cold = duels.cold(requests, rivals, query, cold, extent, _report, "separate")
    texts = work.items[: extent.texts]
    results.throughput = duels.throughput(server.url, repository, rivals, texts, extent, _report)
    indexed = work.items[: extent.indexed]
    results.indexing, results.indexing_alone = duels.indexing(requests, repository, indexed, extent, _report)
    results.refining = _refining(extent)
    results.padding["separate"] = inprocess.padding(repository, work.items)
    _report("indexing the workload")
    trees = {item.id: item for item in workload.with_trees(requests.client, work.items)}
    _report("what is kept")
    judge(results, requests.client, rivals, work.questions[: extent.judged], trees, repository.counter)
    results.curves = curves.by_load(requests, query, queries, warm, cold, extent, _report)
    _report("dynamic batching")
    results.merging = curves.merging(requests, queries, cold, in_flight=_MERGING_AT, each=_MERGING_EACH)
    _report(f"{extent.soak} requests in a row")
    asked = [(one.question, [trees[item.id] for item in one.items]) for one in work.questions]
    results.soak = soak(
        lambda number: requests.client.compress(*asked[number % len(asked)]),
        server.pid,
        requests=extent.soak,
        in_flight=_SOAK_AT,
    )
    _report(f"{extent.flood} requests at once")
    results.flood = flood(server.url, query, warm, extent.flood)
    # Last, for the largest requests leave the largest buffers behind.
    results.by_items = curves.by_items(requests, repository, query, extent, _report)
    results.by_fragments = curves.by_fragments(requests, repository, query, extent, _report)
    return results


def grow_again(results: Results, data: Path | None, extent: Extent) -> None:
    """Put growth and refinement, measured anew, into an earlier run's results.

    They take one server and a few minutes, and their aims are about the largest of many steps: what else a machine does
    in one of those decides.
    """
    query = workload.build(data, questions=extent.questions, items=extent.items).questions[0].question
    with (
        tempfile.TemporaryDirectory() as folder,
        evidence("separate", _report) as server,
        generator(server.url, Path(folder)) as requests,
    ):
        repository = Repository(server.repository)
        if repository.manifest.revision != results.setup.revision:
            raise SystemExit(f"the results are of encoder {results.setup.revision}, not {repository.manifest.revision}")
        results.refining = _refining(extent)
        results.by_items = curves.by_items(requests, repository, query, extent, _report)
        results.by_fragments = curves.by_fragments(requests, repository, query, extent, _report)
    results.grown_again = True


def _refining(extent: Extent) -> list[inprocess.Refining]:
    """A thousand fragments once a round, other sizes and other branchings once."""
    found = [inprocess.refining(1000) for _ in range(extent.rounds)]
    found += [inprocess.refining(fragments) for fragments in (8, 64)]
    return found + [inprocess.refining(1000, branching) for branching in (4, 8, 16)]


def _keep(results: Results, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / JSON_FILE).write_bytes(msgspec.json.encode(results))


def _setup(
    server: Server,
    repository: Repository,
    rivals: Rivals,
    work: workload.Workload,
    warm: Sequence[Item],
    extent: Extent,
    threads: int,
) -> Setup:
    return Setup(
        machine=machine(),
        cores=os.cpu_count() or 1,
        triton=server.version,
        versions=rivals.versions,
        load=load.name_of(load.find_perf_analyzer()),
        quick=extent is QUICK,
        threads=threads,
        questions=len(work.questions),
        items=len(work.items),
        sources=work.source,
        tree_kb=workload.tree_bytes(warm) / 1000,
        settings=settings_of(server.url),
        revision=repository.manifest.revision,
        precision=repository.manifest.precision,
    )


def _report(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, under five minutes")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(workload.ROOT)} and its figures")
    parser.add_argument("--data", type=Path, help="folder of question sets; by default data/ where there is one")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of every peer's encoder")
    parser.add_argument("--again", type=Path, help="make the page from an earlier run's results.json, measure nothing")
    parser.add_argument("--growth", action="store_true", help="with --again: measure growth and refinement anew")
    options = parser.parse_args()
    if options.growth and options.again is None:
        parser.error("--growth needs --again: the results that it goes into")
    options.data = options.data or workload.default_data()
    return options


if __name__ == "__main__":
    main()
