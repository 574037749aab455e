"""What safety costs: ``python -m benchmarks.safety --write`` writes docs/results/safety.md.

Two servers side by side on this machine, one plain, one with TLS, mutual TLS, probes, scrapes or traces, or with all of
them. Rounds take turns, first one server, then the other, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
import numpy as np

from benchmarks import workload
from benchmarks.guarded import PERIOD_S, RATE, Arm, Target, certificates, probe_cpu_s, serving, sink, watched
from benchmarks.load import Figures, median_of
from benchmarks.machine import machine
from canopy_backend.items import Item, encode_item
from canopy_client import CanopyClient, telemetry
from canopy_client.calls import recorded
from canopy_client.channels import channel_options
from canopy_client.codec import compress_request
from canopy_local import stack
from canopy_local.settings import StackSettings
from canopy_training.evaluation.tables import table

PAGE: Final = workload.ROOT / "docs" / "results" / "safety.md"
#: Share of the throughput that all of it together may cost.
AIM: Final = 0.05
ROUNDS: Final = 3
CONCURRENCY: Final = (1, 4)
#: The chart's own: a readiness probe each 20 s and a liveness probe each 60 s, as one stream.
CHART_PERIOD_S: Final = 15.0
#: Nothing happens on the plain server that would take longer to see.
LONGEST_PLAIN_S: Final = 4.0
_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_QUERY: Final = "When is the lantern race held?"

_ALL: Final = {"tls": True, "mutual": True, "scrape": True, "traced": True}
#: The most telling first: a run that has no time for all of them has these.
ALL: Final = "all but the probe"
ARMS: Final = (
    Arm(label=ALL, **_ALL),
    Arm(label="mutual TLS", tls=True, mutual=True),
    Arm(label="traces at rate 0.01", traced=True),
    Arm(label="TLS", tls=True),
    Arm(label="metrics read every 5 s", scrape=True, seconds=5.0),
    Arm(label="all, the probe every 5 s", probe_s=PERIOD_S, seconds=5.0, **_ALL),
    Arm(label="all, the probe every 15 s", probe_s=CHART_PERIOD_S, seconds=15.0, **_ALL),
    Arm(label="probe every 5 s", probe_s=PERIOD_S, seconds=5.0),
)


class Measured(msgspec.Struct, frozen=True):
    """One round, or the medians of several.

    Attributes:
        figures: Requests a second and their times.
        cpu_ms: Processor time of server and client a request, in milliseconds.
    """

    figures: Figures
    cpu_ms: float


class Row(msgspec.Struct, frozen=True):
    """One arm at one concurrency: medians of the plain server's rounds and of the other's."""

    label: str
    plain: Measured
    safe: Measured

    @property
    def cost(self) -> float:
        """Share of the throughput that is lost."""
        return 1 - self.safe.figures.requests_per_s / self.plain.figures.requests_per_s


def measure(target: Target, message: Any, concurrency: int, seconds: float) -> Measured:
    """A closed loop of one request, written once; each call is a question to the client's log and trace."""
    payload = message.SerializeToString()
    options = channel_options(target.url)
    channel = (
        grpc.insecure_channel(target.url, options)
        if target.tls is None
        else grpc.secure_channel(target.url, target.tls.credentials(), options)
    )
    with channel:
        call = channel.unary_unary(_METHOD)
        call(payload, timeout=60)
        times: list[list[float]] = [[] for _ in range(concurrency)]
        used = time.process_time() + target.cpu_s()
        until = time.perf_counter() + seconds

        def work(own: list[float]) -> None:
            while (start := time.perf_counter()) < until:
                with telemetry.span("question"), recorded(message, target.url) as context:
                    call(payload, timeout=60, **context)
                own.append(time.perf_counter() - start)

        threads = [threading.Thread(target=work, args=(own,)) for own in times]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - start
        used = time.process_time() + target.cpu_s() - used
    every = np.concatenate([np.array(own) for own in times])
    p50, p95 = np.percentile(every, [50, 95]) * 1000
    figures = Figures(concurrency, len(every) / elapsed, float(p50), float(p95))
    return Measured(figures, 1000 * used / len(every))


def compare(arm: Arm, plain: Target, safe: Target, message: Any, collector: str) -> list[Row]:
    """Rounds of both servers in turn."""
    rounds: dict[tuple[str, int], list[Measured]] = {}
    for _, concurrency in itertools.product(range(ROUNDS), CONCURRENCY):
        rounds.setdefault(("plain", concurrency), []).append(
            measure(plain, message, concurrency, min(arm.seconds, LONGEST_PLAIN_S))
        )
        with watched(arm, safe), telemetry.exporting(collector if arm.traced else "", RATE):
            rounds.setdefault(("safe", concurrency), []).append(measure(safe, message, concurrency, arm.seconds))
    return [
        Row(arm.label, _median(rounds["plain", concurrency]), _median(rounds["safe", concurrency]))
        for concurrency in CONCURRENCY
    ]


def _median(rounds: Sequence[Measured]) -> Measured:
    return Measured(median_of([one.figures for one in rounds]), float(np.median([one.cpu_ms for one in rounds])))


def run(arms: Sequence[Arm], minutes: float) -> tuple[list[Row], float]:
    """All arms, each beside the same plain server; none is begun once so many minutes have passed."""
    until = time.monotonic() + 60 * minutes
    shared = StackSettings.from_environment()
    stack.export(shared, stack.silent)
    rows = []
    with ExitStack() as exit_stack:
        files = Path(exit_stack.enter_context(tempfile.TemporaryDirectory()))
        certificates(files)
        collector = exit_stack.enter_context(sink())
        plain = exit_stack.enter_context(serving(shared, Arm(label="plain"), files, collector))
        probe = probe_cpu_s(plain)
        message = compress_request(_QUERY, [encode_item(item) for item in _items(plain)])
        for arm in arms:
            if time.monotonic() > until:
                print(f"no time for: {arm.label}", file=sys.stderr)
                continue
            with serving(shared, arm, files, collector) as safe:
                rows += compare(arm, plain, safe, message, collector)
            for row in rows[-len(CONCURRENCY) :]:
                print(" | ".join(_cells(row)), file=sys.stderr)
    return rows, probe


def _items(target: Target) -> list[Item]:
    with CanopyClient(target.url) as client:
        return workload.with_trees(client, workload.passages())


def _cells(row: Row) -> list[str]:
    plain, safe = row.plain.figures, row.safe.figures
    return [
        row.label, str(plain.concurrency), f"{plain.requests_per_s:.0f}", f"{safe.requests_per_s:.0f}",
        f"{100 * row.cost:+.1f} %", f"{plain.p50_ms:.2f}", f"{safe.p50_ms:.2f}",
        f"{row.plain.cpu_ms:.2f}", f"{row.safe.cpu_ms:.2f}",
    ]  # fmt: skip


def by_processor(row: Row, probe_s: float, period_s: float) -> float:
    """Share of the throughput that is lost where all cores are at work: requests cost more, and probes take their part.

    Args:
        row: All of it but the probe.
        probe_s: Processor time of one probe.
        period_s: Seconds between two.
    """
    left = 1 - probe_s / (period_s * len(os.sched_getaffinity(0)))
    return 1 - left * row.plain.cpu_ms / row.safe.cpu_ms


def page(rows: Sequence[Row], probe_s: float) -> str:
    """The result as Markdown."""
    header = [
        "the other server has", "at once", "plain, a second", "with it, a second", "cost", "plain p50, ms",
        "with it p50, ms", "plain CPU, ms", "with it CPU, ms",
    ]  # fmt: skip
    busy = rows[-1]
    together = max(
        (row for row in rows if row.label == ALL), key=lambda row: row.plain.figures.concurrency, default=busy
    )
    verdicts = [
        f"- a probe every {period:g} s: {100 * cost:.1f} % of the throughput; aim {100 * AIM:.0f} %: "
        f"{'met' if cost <= AIM else '**missed**'}."
        for period in (PERIOD_S, CHART_PERIOD_S)
        for cost in [by_processor(together, probe_s, period)]
    ]
    words = (
        "# What safety costs\n\n"
        "`compress` of ten items of eight sentences with trees, by a closed loop over gRPC that shares the cores with "
        "both servers, one of which rests while the other is measured. Rounds in turn, medians of "
        f"{ROUNDS}. Machine: {machine()}; load average {os.getloadavg()[1]:.1f} over the last five minutes, of which "
        "the bench itself makes about 2. Command: `python -m benchmarks.safety --write`.\n\n"
        f"{table(header, [_cells(row) for row in rows])}\n\n"
        "CPU is the processor time of server and client a request; unlike requests a second it hardly depends on what "
        "else the machine does, so where the load is far above 2 go by it. "
        f"One probe takes {probe_s:.2f} s of it: the command is a process that starts and imports what it needs each "
        "time, beside three calls that pass through every model. By processor time, all together on "
        f"{len(os.sched_getaffinity(0))} busy cores:\n\n"
    )
    missing = [arm.label for arm in ARMS if arm.label not in {row.label for row in rows}]
    left_out = f"\n\nNot measured in the time that the run was given: {'; '.join(missing)}." if missing else ""
    chart = "The chart asks for readiness every 20 s and for liveness every 60 s, which is a probe every 15 s."
    end = f"{left_out}\n\n{chart}\n"
    return words + "\n".join(verdicts) + end


def main() -> None:
    """Measure, print, and write the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(workload.ROOT)}")
    parser.add_argument("--only", default="", help="arms whose label begins so")
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no arm after so long")
    given = parser.parse_args()
    text = page(*run([arm for arm in ARMS if arm.label.startswith(given.only)], given.minutes))
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
