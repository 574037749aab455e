"""Resident memory of the server's processes and of Triton's shared memory, sampled while requests run."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psutil

MIB = 1024 * 1024


class Samples(msgspec.Struct):
    """Memory over time, in MiB.

    Attributes:
        seconds: When each sample was taken, from the first request on.
        requests: Requests answered at that time.
        resident: Resident memory by process. Shared pages count once a process, so a sum is an upper bound.
        shm: ``/dev/shm`` as a whole.
    """

    seconds: list[float] = []
    requests: list[int] = []
    resident: dict[str, list[float]] = {}
    shm: list[float] = []

    def total(self) -> list[float]:
        """Resident memory of all processes together, at each sample."""
        return [sum(values) for values in zip(*self.resident.values(), strict=True)]


class Sampler:
    """Takes samples of the process ``pid`` and all its descendants; those that run now are the ones it looks at."""

    def __init__(self, pid: int) -> None:
        self.samples = Samples(resident={})
        self.answered = 0
        self._processes = _named(pid)
        self._started = time.perf_counter()

    def take(self) -> None:
        """Add a sample; a process that has ended counts as nothing."""
        self.samples.seconds.append(time.perf_counter() - self._started)
        self.samples.requests.append(self.answered)
        self.samples.shm.append(shutil.disk_usage("/dev/shm").used / MIB)
        for name, process in self._processes.items():
            try:
                resident = process.memory_info().rss / MIB
            except psutil.NoSuchProcess:
                resident = 0.0
            self.samples.resident.setdefault(name, []).append(resident)


@contextmanager
def sampled(pid: int, every_s: float) -> Iterator[Sampler]:
    """A sampler that takes a sample now, one every ``every_s`` seconds, and one when the block ends."""
    sampler = Sampler(pid)
    sampler.take()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            sampler.take()

    thread = threading.Thread(target=watch, name="memory")
    thread.start()
    try:
        yield sampler
    finally:
        done.set()
        thread.join()
        sampler.take()


def _named(pid: int) -> dict[str, psutil.Process]:
    """The server and the processes of its models, by the model's name."""
    root = psutil.Process(pid)
    found = {"tritonserver": root}
    seen: Counter[str] = Counter()
    for process in root.children(recursive=True):
        name = _model(process)
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} {seen[name]}"] = process
    return found


def _model(process: psutil.Process) -> str:
    """What a model's process serves: a stub is told the file of its model, ``…/NAME/VERSION/model.py``."""
    for word in process.cmdline():
        parts = word.split("/")
        if word.endswith(".py") and len(parts) >= 3:
            return parts[-3]
    return process.name()
