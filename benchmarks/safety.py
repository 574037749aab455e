"""What safety costs: ``python -m benchmarks.safety --write`` writes docs/results/safety.md.

Two servers side by side on this machine, one plain, one with TLS, mutual TLS, probes, scrapes or traces, or with all of
them. Rounds take turns, first one server, then the other, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import grpc
import httpx
import msgspec
import numpy as np

from benchmarks import workload
from benchmarks.load import Figures, median_of
from benchmarks.machine import machine
from canopy_backend.errors import StackError
from canopy_backend.items import Item, encode_item
from canopy_client import CanopyClient, Tls, canary, telemetry
from canopy_client.calls import recorded
from canopy_client.channels import channel_options
from canopy_client.codec import compress_request
from canopy_local import environments, procfs, stack, triton_server
from canopy_local.isolation import free_ports, isolated
from canopy_local.settings import StackSettings
from canopy_local.spawn import spawn
from canopy_training.evaluation.tables import table

PAGE: Final = workload.ROOT / "docs" / "results" / "safety.md"
#: Share of the throughput that all of it together may cost.
AIM: Final = 0.05
ROUNDS: Final = 3
CONCURRENCY: Final = (1, 4)
#: Seconds between two probes, and between two scrapes.
PERIOD_S: Final = 5.0
#: The chart's own: a readiness probe each 20 s and a liveness probe each 60 s, as one stream.
CHART_PERIOD_S: Final = 15.0
RATE: Final = 0.01
#: Nothing happens on the plain server that would take longer to see.
LONGEST_PLAIN_S: Final = 4.0
_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_QUERY: Final = "When is the lantern race held?"
#: Answers every post with success, as a collector does that keeps up.
_SINK: Final = """
import http.server, sys
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Sink).serve_forever()
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """What one server has and the other has not.

    Attributes:
        label: In words.
        tls: Encrypted.
        mutual: Clients show a certificate too.
        probe_s: Seconds between two runs of the probe's command; 0 for none.
        scrape: Metrics are read each :data:`PERIOD_S`.
        traced: Spans at :data:`RATE`, of client and server.
        seconds: How long each round lasts: a whole period, so that it has its share of probes and scrapes.
    """

    label: str
    tls: bool = False
    mutual: bool = False
    probe_s: float = 0.0
    scrape: bool = False
    traced: bool = False
    seconds: float = 2.5


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


@dataclasses.dataclass(frozen=True)
class Target:
    """A running server, and how to reach it."""

    url: str
    metrics: str
    tls: Tls | None
    files: list[str]
    token: str

    def cpu_s(self) -> float:
        """Processor time of all of its processes."""
        return procfs.processor_seconds(procfs.carriers(self.token))


def certificates(folder: Path) -> None:
    """An authority, a server's certificate for localhost and a client's, by openssl."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl(folder, "req", "-x509", *curve, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    for name, subject in (("server", "DNS:localhost,IP:127.0.0.1"), ("client", "DNS:client")):
        _openssl(folder, "req", *curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / f"{name}.ext").write_text(f"subjectAltName={subject}", encoding="utf-8")
        signed = ["x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        _openssl(folder, *signed, "-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@contextmanager
def serving(shared: StackSettings, arm: Arm, files: Path, collector: str) -> Iterator[Target]:
    """An evidence server with what the arm asks for."""
    with tempfile.TemporaryDirectory() as temporary:
        one = isolated(shared, Path(temporary, "home"))
        one = msgspec.structs.replace(one, tracing_url=collector if arm.traced else "", tracing_rate=RATE)
        server = environments.ensure(one, "server", stack.silent)
        token = uuid4().hex
        launch = triton_server.launch(one, "evidence", token, server=server, critic=None)
        command = [*launch.command, *_tls_flags(arm, files)]
        log = one.logs / "evidence.log"
        pid = spawn(dataclasses.replace(launch, command=command), log, tied=True)
        own = (files / "client.key", files / "client.crt") if arm.mutual else (None, None)
        tls = Tls(files / "ca.crt", *own) if arm.tls else None
        url = f"localhost:{one.grpc_port}"
        try:
            until = time.monotonic() + one.start_timeout_s
            while not canary.result("evidence", url, timeout_s=10, tls=tls).passed:
                if time.monotonic() > until or procfs.start_ticks(pid) is None:
                    raise StackError(f"the server does not start: {log.read_text(encoding='utf-8')[-2000:]}")
                time.sleep(0.5)
            yield Target(url, f"http://127.0.0.1:{one.metrics_port}/metrics", tls, _probe_flags(arm, files), token)
        finally:
            procfs.end(token, pid, timeout_s=one.stop_timeout_s)
            procfs.reap(pid)
            procfs.remove_shared_memory(triton_server.shm_prefix("evidence", token))


def _tls_flags(arm: Arm, files: Path) -> list[str]:
    flags = []
    if arm.tls:
        flags += [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={files}/server.crt",
            f"--grpc-server-key={files}/server.key",
        ]
    if arm.mutual:
        flags += ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={files}/ca.crt"]
    return flags


def _probe_flags(arm: Arm, files: Path) -> list[str]:
    flags = ["--tls", "--tls-roots", f"{files}/ca.crt"] if arm.tls else []
    return flags + (["--tls-key", f"{files}/client.key", "--tls-certificate", f"{files}/client.crt"] * arm.mutual)


@contextmanager
def watched(arm: Arm, target: Target) -> Iterator[None]:
    """The probe's command and the reader of metrics, each at its period, for as long as the block runs."""
    done = threading.Event()
    command = [sys.executable, "-m", "canopy_client.cli.probe", "--url", target.url, *target.files]

    def probe() -> None:
        subprocess.run(command, check=True, capture_output=True)

    def scrape() -> None:
        httpx.get(target.metrics, timeout=10, trust_env=False).raise_for_status()

    def every(period_s: float, work: Any) -> None:
        for number in itertools.count(1):
            start = time.monotonic()
            work()
            if done.wait(max(0.0, period_s - (time.monotonic() - start))) or number > 10_000:
                return

    jobs = [(arm.probe_s, probe)] * bool(arm.probe_s) + [(PERIOD_S, scrape)] * arm.scrape
    threads = [threading.Thread(target=every, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@contextmanager
def sink() -> Iterator[str]:
    """A collector that takes everything, in a process of its own; yields its address."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-I", "-c", _SINK, str(port)])
    try:
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        process.kill()
        process.wait()


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


def probe_cpu_s(target: Target) -> float:
    """Processor time of one run of the probe, its command's and the server's: the median of five."""
    command = [sys.executable, "-m", "canopy_client.cli.probe", "--url", target.url, *target.files]
    found = []
    for _ in range(5):
        before, server = os.times(), target.cpu_s()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        own = after.children_user + after.children_system - before.children_user - before.children_system
        found.append(own + target.cpu_s() - server)
    return float(np.median(found))


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
