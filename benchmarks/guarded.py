"""Servers with what safety asks for: certificates, probes, a reader of metrics and a collector of traces."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import msgspec
import numpy as np

from canopy_backend.errors import StackError
from canopy_client import Tls, canary
from canopy_local import environments, procfs, stack, triton_server
from canopy_local.isolation import free_ports, isolated
from canopy_local.settings import StackSettings
from canopy_local.spawn import spawn

#: Seconds between two probes, and between two scrapes.
PERIOD_S: Final = 5.0
RATE: Final = 0.01
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
