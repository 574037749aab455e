"""The stack as a whole: set up, start, look, stop. Each is safe to repeat and to interrupt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from canopy_backend.errors import StackError, StandsStill
from canopy_client.canary import Canary
from canopy_local import canary, critic_model, environments, processes
from canopy_local.environments import CRITIC, SERVER
from canopy_local.locking import Report, locked
from canopy_local.settings import StackSettings
from canopy_local.state import ServerState, State
from canopy_local.triton_server import EVIDENCE, ports

SERVERS: Final = (EVIDENCE, CRITIC)
_CANARY_TIMEOUT_S: Final = 20.0


class ServerStatus(msgspec.Struct, frozen=True):
    """How a server is.

    Attributes:
        name: ``evidence`` or ``critic``.
        alive: Its process runs.
        ready: It says of itself that it is ready.
        canary: What a real request came back with.
        version: Triton's version.
        ports: Port by purpose.
        pid: Its process; 0 when it is not running.
        processes: Number of its processes, models included.
        log: Its log file.
    """

    name: str
    alive: bool
    ready: bool
    canary: Canary
    version: str
    ports: dict[str, int]
    pid: int
    processes: int
    log: str

    @property
    def up(self) -> bool:
        """Whether it serves."""
        return self.alive and self.canary.passed


class StackStatus(msgspec.Struct, frozen=True):
    """How the stack is: its servers, and where the collections of Milvus Lite lie, which need no process."""

    servers: list[ServerStatus]
    home: str
    repository: str
    milvus_uri: str

    @property
    def up(self) -> bool:
        """Whether every server serves."""
        return all(server.up for server in self.servers)


def silent(_: str) -> None:
    """A report that goes nowhere."""


def up(
    settings: StackSettings,
    *,
    servers: Iterable[str] = SERVERS,
    report: Report = silent,
    tied: bool = False,
) -> StackStatus:
    """Set up what is missing and start what does not serve; a server that passes its canary is left alone.

    Args:
        settings: Where and how.
        servers: Which servers; the others are left as they are.
        report: Called with a line about each step.
        tied: Stop the servers when the calling thread ends.

    Raises:
        StackError: Something cannot be set up or started; what this call started is stopped again.
    """
    names = list(servers)
    with locked(settings.home, report):
        server = environments.ensure(settings, SERVER, report)
        critic = environments.ensure(settings, CRITIC, report)
        converted = critic_model.ensure(settings, critic, report)
        state = State.load(settings)
        if converted and CRITIC in names:
            processes.stop(settings, state, CRITIC, report)
        todo = [name for name in names if not _kept(settings, state, name, report)]
        started: list[ServerState] = []
        try:
            if EVIDENCE in todo:
                export(settings, report)
            for name in todo:
                report(f"starting the {name} server")
                started.append(processes.start(settings, state, name, server=server, critic=critic, tied=tied))
            for entry in started:
                try:
                    processes.wait(settings, entry, report)
                except StandsStill as error:
                    report(f"{error}; starting it a second time")
                    processes.stop(settings, state, entry.name, report)
                    again = processes.start(settings, state, entry.name, server=server, critic=critic, tied=tied)
                    processes.wait(settings, again, report, patient=True)
        except BaseException:
            for name in todo:
                processes.stop(settings, state, name, report)
            raise
    return status(settings, servers=names)


def status(settings: StackSettings, *, servers: Iterable[str] = SERVERS) -> StackStatus:
    """Look at the servers; starts and changes nothing, and does not wait for other commands."""
    state = State.load(settings)
    return StackStatus(
        servers=[_look(settings, state.servers.get(name), name) for name in servers],
        home=str(settings.home),
        repository=str(settings.model_repository),
        milvus_uri=settings.milvus_uri,
    )


def down(settings: StackSettings, *, servers: Iterable[str] = SERVERS, report: Report = silent) -> None:
    """Stop servers with all their processes and remove what they left in ``/dev/shm``; safe when none runs."""
    with locked(settings.home, report):
        state = State.load(settings)
        for name in reversed(list(servers)):
            processes.stop(settings, state, name, report)


@contextmanager
def running(
    settings: StackSettings, *, servers: Iterable[str] = SERVERS, report: Report = silent
) -> Iterator[StackStatus]:
    """The stack for as long as the block runs; it does not outlive this process, even if that is killed."""
    names = list(servers)
    try:
        yield up(settings, servers=names, report=report, tied=True)
    finally:
        down(settings, servers=names, report=report)


def export(settings: StackSettings, report: Report) -> None:
    """Put the encoders into the repository where they are missing or stale.

    Raises:
        CanopyError: The export failed.
    """
    from canopy_export.example import EXAMPLE_NAME, adapter_for, example_model, precision_for
    from canopy_export.export import export_encoders

    with locked(settings.critic_model.parent, report):
        export_encoders(
            settings.model or example_model(),
            settings.model_repository,
            adapter=adapter_for(settings.model, settings.adapter, settings.node_encoding),
            node_encoding=settings.node_encoding,
            precision=precision_for(settings.model, settings.adapter, settings.precision),
            profile="embedded",
            name=None if settings.model else EXAMPLE_NAME,
            reader_tokenizer=settings.critic_model / "tokenizer.json",
            report=report,
        )


def _kept(settings: StackSettings, state: State, name: str, report: Report) -> bool:
    """Whether a recorded server serves and stays; what is left of one that does not is stopped."""
    entry = state.servers.get(name)
    if entry is None:
        return False
    if entry.alive:
        if entry.ports != ports(settings, name):
            raise StackError(f"the {name} server is up on other ports ({_list(entry.ports)}); run canopy down first")
        if canary.result(name, settings.host, entry.ports, timeout_s=_CANARY_TIMEOUT_S).passed:
            report(f"{name} server is up already")
            return True
        report(f"the {name} server runs and does not pass its canary")
    processes.stop(settings, state, name, report)
    return False


def _look(settings: StackSettings, entry: ServerState | None, name: str) -> ServerStatus:
    chosen = ports(settings, name) if entry is None else entry.ports
    alive = entry is not None and entry.alive
    ready, version, seen = False, "", Canary(False, 0.0, "not running")
    if alive:
        ready, version = canary.health(settings.host, chosen["http"])
        seen = canary.result(name, settings.host, chosen, timeout_s=_CANARY_TIMEOUT_S)
    return ServerStatus(
        name=name,
        alive=alive,
        ready=ready,
        canary=seen,
        version=version,
        ports=chosen,
        pid=entry.pid if entry is not None and alive else 0,
        processes=0 if entry is None else len(entry.processes),
        log=str(settings.logs / f"{name}.log"),
    )


def _list(chosen: dict[str, int]) -> str:
    return ", ".join(f"{purpose} {port}" for purpose, port in chosen.items())
