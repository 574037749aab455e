"""The faults themselves: each is there while its block runs, and mended when it ends."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.failures.keeper import Kept
from benchmarks.failures.places import Link
from benchmarks.failures.traffic import Traffic

#: Seconds that a process stands still, that a link is cut, and that shared memory is full.
STOPPED_S: Final = 8.0
CUT_S: Final = 8.0
FULL_S: Final = 10.0
AWAY_S: Final = 5.0
_BLOCK: Final = 64 * 1024


@dataclass
class Stage:
    """What there is to break.

    Attributes:
        evidence, critic: Servers; ``critic`` is ``None`` where there is none.
        milvus: The store's process (``RunningMilvus`` of the tests).
        traffic: The load on them.
        link: The link to the evidence server, where there is one.
    """

    evidence: Kept
    critic: Kept | None
    milvus: Any
    traffic: Traffic
    link: Link | None = None


Fault = Callable[[Stage], AbstractContextManager[None]]


def kill_stub(model: str) -> Fault:
    """Kill the process of one model; the server itself does not start it again."""

    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        os.kill(stage.evidence.stubs()[model], signal.SIGKILL)
        yield

    return fault


@contextmanager
def kill_evidence(stage: Stage) -> Iterator[None]:
    """Kill the evidence server's own process."""
    os.kill(stage.evidence.state.pid, signal.SIGKILL)
    yield


@contextmanager
def kill_critic(stage: Stage) -> Iterator[None]:
    """Kill the critic server's own process."""
    assert stage.critic is not None
    os.kill(stage.critic.state.pid, signal.SIGKILL)
    yield


@contextmanager
def kill_critic_model(stage: Stage) -> Iterator[None]:
    """Kill the process of the language model behind the critic server."""
    assert stage.critic is not None
    os.kill(stage.critic.stubs()["critic"], signal.SIGKILL)
    yield


def stop_stub(model: str) -> Fault:
    """Let the process of one model stand still."""
    return lambda stage: _stopped([stage.evidence.stubs()[model]])


def stop_evidence(stage: Stage) -> AbstractContextManager[None]:
    """Let the evidence server's own process stand still."""
    return _stopped([stage.evidence.state.pid])


def stop_critic(stage: Stage) -> AbstractContextManager[None]:
    """Let all processes of the critic server stand still."""
    assert stage.critic is not None
    return _stopped(stage.critic.state.processes)


@contextmanager
def kill_milvus(stage: Stage) -> Iterator[None]:
    """Kill the vector store, and start it again over the same data."""
    stage.milvus.kill()
    try:
        yield
    finally:
        stage.milvus.start()


@contextmanager
def stop_milvus(stage: Stage) -> Iterator[None]:
    """Let the vector store stand still."""
    with _stopped([stage.milvus.process.pid]):
        yield


@contextmanager
def fill_shm(stage: Stage) -> Iterator[None]:
    """Leave no byte of the evidence server's ``/dev/shm``, and send requests that need more of it."""
    filler = Path(f"/proc/{stage.evidence.process.pid}/root/dev/shm/filler")
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(_BLOCK))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    stage.traffic.begin("long")
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def cut_link(stage: Stage) -> Iterator[None]:
    """Let nothing through between clients and server."""
    assert stage.link is not None
    stage.link.cut()
    try:
        yield
    finally:
        stage.link.mend()


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def milvus(folder: Path) -> Any:
    """A real Milvus server on ports of its own, not started yet: the one of the tests."""
    source = Path(__file__).resolve().parents[2] / "tests" / "integration" / "milvus_fixture.py"
    found = importlib.util.spec_from_file_location("milvus_fixture", source)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.RunningMilvus(folder)
