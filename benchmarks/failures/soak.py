"""The same load for a long time, with nothing broken: memory, descriptors and latency meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import psutil

from benchmarks.failures.callers import makers
from benchmarks.failures.calls import OUTCOMES, Stretch
from benchmarks.failures.stage import Built
from benchmarks.failures.traffic import Answers, Traffic, running
from benchmarks.growth import WARM_UP
from benchmarks.memory import MIB
from canopy_local import procfs

#: Samples of a run, about; and the share of it that counts as its beginning and as its end.
_SAMPLES: Final = 240
_SHARE: Final = 0.1
#: What counts as flat.
FLAT: Final = 0.05
SHM: Final = "/dev/shm"


class Latency(msgspec.Struct, frozen=True):
    """Quantiles of one kind of call in one stretch of time, in milliseconds."""

    calls: int
    p50: float
    p95: float
    p99: float


class Soak(msgspec.Struct, kw_only=True):
    """A run.

    Attributes:
        minutes: How long it was.
        outcomes: Number of calls by outcome.
        details: How often each error was seen.
        seconds: When each sample was taken.
        memory: Resident memory by process, and what the servers have in ``/dev/shm``, in MiB.
        descriptors: Open descriptors by process.
        first, last: Latency by kind, in the tenth after the warm-up and in the last one.
        quantiles: ``[seconds, p50, p95, p99]`` by kind, one a tenth of the run, in milliseconds.
    """

    minutes: float
    outcomes: dict[str, int] = {}
    details: dict[str, int] = {}
    seconds: list[float] = []
    memory: dict[str, list[float]] = {}
    descriptors: dict[str, list[int]] = {}
    first: dict[str, Latency] = {}
    last: dict[str, Latency] = {}
    quantiles: dict[str, list[list[float]]] = {}

    def ends(self, values: list[float] | list[int]) -> tuple[float, float]:
        """Medians of a figure over the tenth after the warm-up and over the last tenth."""
        after = np.asarray(values, np.float64)[int(WARM_UP * len(values)) :]
        some = max(1, int(_SHARE * len(values)))
        return float(np.median(after[:some])), float(np.median(after[-some:]))

    def changes(self) -> dict[str, float]:
        """By how much each process's memory, and ``/dev/shm``, moved after the warm-up, as a share."""
        found = {}
        for name, values in self.memory.items():
            first, last = self.ends(values)
            found[name] = last / first - 1 if first else 0.0
        return found

    @property
    def passed(self) -> bool:
        """Whether every answer was right, memory is flat and no process holds more descriptors than before."""
        right = all(not self.outcomes[outcome] for outcome in OUTCOMES if outcome not in ("right", "rounded"))
        flat = all(change <= FLAT for change in self.changes().values())
        leak = any(last > first for first, last in map(self.ends, self.descriptors.values()))
        return right and flat and not leak


class Watch:
    """Samples of the processes that run when it begins."""

    def __init__(self, processes: Mapping[str, int], prefixes: list[str]) -> None:
        self.seconds: list[float] = []
        self.memory: dict[str, list[float]] = {name: [] for name in (*processes, SHM)}
        self.descriptors: dict[str, list[int]] = {name: [] for name in processes}
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._prefixes = prefixes
        self._started = time.monotonic()

    def take(self) -> None:
        """Add a sample; a process that has ended counts as nothing."""
        self.seconds.append(time.monotonic() - self._started)
        regions = [path for prefix in self._prefixes for path in procfs.shared_memory(prefix)]
        self.memory[SHM].append(sum(_blocks(path) for path in regions) / MIB)
        for name, process in self._processes.items():
            try:
                resident, open_files = process.memory_info().rss / MIB, process.num_fds()
            except psutil.NoSuchProcess:
                resident, open_files = 0.0, 0
            self.memory[name].append(resident)
            self.descriptors[name].append(open_files)


def run(stage: Built, answers: Answers, *, minutes: float) -> Soak:
    """Send the load for so many minutes.

    Args:
        stage: The running stack.
        answers: The recorded ones.
        minutes: How long.
    """
    watch = Watch(processes_of(stage), [stage.evidence.state.shm_prefix, stage.critic.state.shm_prefix])
    with running(makers(stage.targets, stage.material), answers) as traffic:
        start = time.monotonic()
        with _sampled(watch, 60 * minutes / _SAMPLES):
            time.sleep(60 * minutes)
        end = time.monotonic()
        lost = traffic.settle(end)
        return _told(watch, traffic, start, end, len(lost), minutes)


def _told(watch: Watch, traffic: Traffic, start: float, end: float, lost: int, minutes: float) -> Soak:
    seen = traffic.calls.between(start, end)
    outcomes = {outcome: seen.count(outcome) for outcome in OUTCOMES}
    outcomes["lost"] += lost
    tenth = _SHARE * (end - start)
    warm = start + WARM_UP * (end - start)
    return Soak(
        minutes=minutes,
        outcomes=outcomes,
        details=seen.details,
        seconds=watch.seconds,
        memory=watch.memory,
        descriptors=watch.descriptors,
        first={kind: latency(seen.of(kind), warm, warm + tenth) for kind in seen.kinds},
        last={kind: latency(seen.of(kind), end - tenth, end) for kind in seen.kinds},
        quantiles={kind: _course(seen.of(kind), start, tenth) for kind in seen.kinds},
    )


def latency(seen: Stretch, start: float, end: float) -> Latency:
    """Quantiles of the calls that were sent in ``[start, end)``."""
    within = (seen.sent >= start) & (seen.sent < end)
    took = 1000 * (seen.ended - seen.sent)[within]
    if not len(took):
        return Latency(0, 0.0, 0.0, 0.0)
    p50, p95, p99 = (float(value) for value in np.percentile(took, [50, 95, 99]))
    return Latency(len(took), p50, p95, p99)


def _course(seen: Stretch, start: float, step: float) -> list[list[float]]:
    found = []
    for place in range(round(1 / _SHARE)):
        one = latency(seen, start + place * step, start + (place + 1) * step)
        found.append([(place + 0.5) * step, one.p50, one.p95, one.p99])
    return found


def processes_of(stage: Built) -> dict[str, int]:
    """Pids by name: the servers, the processes of their models, the store, and this one."""
    found = {"tritonserver": stage.evidence.state.pid, **stage.evidence.stubs()}
    found["tritonserver (critic)"] = stage.critic.state.pid
    known = set(found.values())
    for pid in stage.critic.state.processes:
        if pid not in known and (name := _name(pid)):
            found[name if name not in found else f"{name} {pid}"] = pid
    return found | {"Milvus": stage.milvus.process.pid, "the eight clients": psutil.Process().pid}


def _name(pid: int) -> str:
    """What a process of the critic server is; empty for helpers that hold nothing."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    if "resource_tracker" in words:
        return ""
    if "VLLM" in words:
        return words.split()[0]
    return "critic" if "triton_python_backend_stub" in words else ""


def _blocks(path: Path) -> int:
    try:
        return 512 * path.stat().st_blocks
    except OSError:
        return 0


@contextmanager
def _sampled(watch: Watch, every_s: float) -> Iterator[None]:
    done = threading.Event()

    def take() -> None:
        watch.take()
        while not done.wait(every_s):
            watch.take()

    thread = threading.Thread(target=take, name="samples")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
