"""Two load generators with one result: perf_analyzer where it is found, else a small closed loop of our own."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np


class Figures(msgspec.Struct, frozen=True):
    """One row of a result table.

    Attributes:
        concurrency: Requests in flight.
        requests_per_s: Completed requests a second.
        p50_ms: Median latency in milliseconds.
        p95_ms: 95th percentile in milliseconds.
    """

    concurrency: int
    requests_per_s: float
    p50_ms: float
    p95_ms: float


#: perf_analyzer takes three windows whose figures differ by no more than this, in per cent: any three, for the runs of
#: a bench are repeated as a whole, and their median is taken.
_ANY: Final = "100000"
#: Windows until three in a row have a request each.
_MAX_WINDOWS: Final = "6"
#: Seconds that one measurement may take.
_LONGEST_S: Final = 900


#: What a closed loop calls.
Call = Callable[[], object]


def median_of(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over runs at one concurrency."""
    return Figures(
        rounds[0].concurrency,
        float(np.median([one.requests_per_s for one in rounds])),
        float(np.median([one.p50_ms for one in rounds])),
        float(np.median([one.p95_ms for one in rounds])),
    )


def find_perf_analyzer() -> str | None:
    """Path of a perf_analyzer that starts here: ``PERF_ANALYZER`` or the one on the path; ``None`` without one."""
    candidate = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")
    if candidate is None:
        return None
    try:
        probe = subprocess.run([candidate, "--version"], capture_output=True, timeout=300, check=False)
    except OSError:
        return None
    return candidate if probe.returncode == 0 else None


def name_of(program: str | None) -> str:
    """What sends the requests, in words."""
    return "perf_analyzer" if program else "the built-in load generator (no perf_analyzer found)"


def run_perf_analyzer(program: str, *, model: str, url: str, data: Path, concurrency: int, requests: int) -> Figures:
    """Run perf_analyzer over gRPC, one measurement of three windows in a row, taken as it comes.

    Args:
        program: Path of perf_analyzer.
        model: Model name.
        url: ``host:port`` of the gRPC endpoint.
        data: Input file.
        concurrency: Requests in flight.
        requests: Requests in a measurement window; never fewer than are in flight.
    """
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "figures.csv"
        command = [
            program, "-m", model, "-i", "grpc", "-u", url, "--input-data", str(data),
            "--concurrency-range", str(concurrency), "--measurement-mode", "count_windows",
            "--measurement-request-count", str(max(requests, concurrency)), "--stability-percentage", _ANY,
            "--max-trials", _MAX_WINDOWS, "-f", str(table),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
        if not table.exists():
            raise SystemExit(f"perf_analyzer failed on {model}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        with table.open(encoding="utf-8") as lines:
            (row,) = csv.DictReader(lines)
    return Figures(
        concurrency,
        float(row["Inferences/Second"]),
        float(row["p50 latency"]) / 1000,
        float(row["p95 latency"]) / 1000,
    )


def run_closed_loop(call: Call, *, concurrency: int, requests: int) -> Figures:
    """Call ``call`` from ``concurrency`` threads until ``requests`` calls are done.

    Latencies are what a Python client sees, so they are higher than perf_analyzer's.
    """
    latencies: list[float] = []
    lock = threading.Lock()
    left = [requests]

    def worker() -> None:
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            start = time.perf_counter()
            call()
            took = time.perf_counter() - start
            with lock:
                latencies.append(took)

    threads = [threading.Thread(target=worker) for _ in range(concurrency)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    if len(latencies) != requests:
        raise SystemExit(f"{requests - len(latencies)} of {requests} calls failed")
    p50, p95 = np.percentile(latencies, [50, 95]) * 1000
    return Figures(concurrency, requests / elapsed, float(p50), float(p95))
