"""One server from start to stop: ports, process, canary, and everything cleaned up behind it."""

from __future__ import annotations

import errno
import socket
import time
from typing import Final
from uuid import uuid4

import msgspec

from canopy_backend.errors import CanopyError, PortBusy, StackError, StandsStill
from canopy_client.canary import Canary
from canopy_local import canary, procfs
from canopy_local.environments import Environment
from canopy_local.locking import Report
from canopy_local.logs import tail
from canopy_local.settings import StackSettings, variable_of
from canopy_local.spawn import spawn
from canopy_local.state import ServerState, State
from canopy_local.triton_server import launch, port_setting, ports, shm_prefix

_POLL_S: Final = 0.25
_CANARY_TIMEOUT_S: Final = 30.0
#: A server that does not listen yet and whose processes together have used less than this in so many seconds hangs.
_STILL_S: Final = 30.0
_STILL_PROCESSOR_S: Final = 0.2


class _Progress:
    """Whether a starting server still works, by the processor time of its processes."""

    def __init__(self, entry: ServerState) -> None:
        self._entry = entry
        self._spent = 0.0
        self._since = time.monotonic()

    def stands_still(self) -> bool:
        """Whether nothing was done for :data:`_STILL_S`; to be asked again and again."""
        spent, now = procfs.processor_seconds(self._entry.processes), time.monotonic()
        # A process that ends takes its time along.
        if abs(spent - self._spent) >= _STILL_PROCESSOR_S:
            self._spent, self._since = spent, now
        return now - self._since > _STILL_S


def check_ports(settings: StackSettings, name: str) -> None:
    """Refuse ports that are taken.

    Raises:
        PortBusy: Names the port and the variable that moves it.
        StackError: The address cannot be listened on.
    """
    for purpose, port in ports(settings, name).items():
        with socket.socket() as probe:
            # As the server does: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, port))
            except OSError as error:
                variable = variable_of(port_setting(name, purpose))
                if error.errno == errno.EADDRINUSE:
                    where = {"host": settings.host, "purpose": f"{name} {purpose}", "variable": variable}
                    raise PortBusy(port, **where) from None
                raise StackError(f"cannot listen on {settings.host}:{port} ({variable}): {error.strerror}") from None


def start(
    settings: StackSettings, state: State, name: str, *, server: Environment, critic: Environment | None, tied: bool
) -> ServerState:
    """Start a server's process and record it; :func:`wait` comes next.

    The record is written before the process exists, so that an interruption leaves nothing that cannot be found.

    Raises:
        StackError: A port is busy, or the program cannot be run.
    """
    check_ports(settings, name)
    token = uuid4().hex
    prepared = launch(settings, name, token, server=server, critic=critic)
    log = settings.logs / f"{name}.log"
    entry = ServerState(name, token, ports(settings, name), shm_prefix(name, token), str(log))
    state.servers[name] = entry
    state.save(settings)
    pid = spawn(prepared, log, tied=tied)
    state.servers[name] = msgspec.structs.replace(entry, pid=pid, start_ticks=procfs.start_ticks(pid) or 0)
    state.save(settings)
    return state.servers[name]


def wait(settings: StackSettings, entry: ServerState, report: Report, *, patient: bool = False) -> Canary:
    """Wait until a server's canary passes.

    Args:
        settings: Where and how.
        entry: The server.
        report: Told when it is ready.
        patient: Wait all the time there is for a server that does nothing.

    Raises:
        StandsStill: It does nothing and does not listen.
        StackError: It died, was not ready in time, or answers wrongly; with the end of its log.
    """
    until = time.monotonic() + settings.start_timeout_s
    progress = _Progress(entry)
    last = "it does not listen yet"
    while time.monotonic() < until:
        if not entry.alive:
            raise _failed(settings, entry, "ended while it started")
        if canary.listens(settings.host, entry.ports["grpc"]):
            try:
                passed = canary.call(entry.name, settings.host, entry.ports, timeout_s=_CANARY_TIMEOUT_S)
            except canary.PASSING as error:
                last = str(error)
            except CanopyError as error:
                raise _failed(settings, entry, f"answers its canary with {type(error).__name__}: {error}") from None
            else:
                report(f"{entry.name} server is ready on {settings.host}:{entry.ports['grpc']} (gRPC)")
                return passed
        elif not patient and progress.stands_still():
            raise StandsStill(f"the {entry.name} server did nothing for {_STILL_S:.0f} s while it started")
        time.sleep(_POLL_S)
    raise _failed(settings, entry, f"was not ready after {settings.start_timeout_s:.0f} s ({last})")


def stop(settings: StackSettings, state: State, name: str, report: Report) -> None:
    """Stop a server, whatever is left of it, and forget it. Nothing to do when it is not recorded."""
    entry = state.servers.get(name)
    if entry is None:
        return
    if entry.processes:
        report(f"stopping the {name} server")
        killed = procfs.end(entry.token, entry.pid, timeout_s=settings.stop_timeout_s)
        if killed:
            report(f"{name}: {len(killed)} processes had to be killed")
    procfs.reap(entry.pid)
    procfs.remove_shared_memory(entry.shm_prefix)
    left = entry.processes
    if left:
        raise StackError(f"{name}: processes {left} do not end even when killed")
    del state.servers[name]
    state.save(settings)


def _failed(settings: StackSettings, entry: ServerState, what: str) -> StackError:
    return StackError(
        f"the {entry.name} server {what}; {entry.log} ends with:\n{tail(settings.logs / f'{entry.name}.log')}"
    )
