"""What this stack started, in a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from canopy_backend.reading import UNREADABLE
from canopy_local import procfs
from canopy_local.settings import StackSettings


class ServerState(msgspec.Struct, frozen=True):
    """One started server.

    Attributes:
        name: ``evidence`` or ``critic``.
        token: Value of the token variable in the environment of its processes.
        ports: Port by purpose: ``http``, ``grpc``, ``metrics``.
        shm_prefix: Start of the names of its shared-memory regions.
        log: Its log file.
        pid: The server's process; 0 between the entry's writing and the start.
        start_ticks: When that process started, in clock ticks since boot.
    """

    name: str
    token: str
    ports: dict[str, int]
    shm_prefix: str
    log: str
    pid: int = 0
    start_ticks: int = 0

    @property
    def alive(self) -> bool:
        """Whether the server's own process still runs; a recycled pid does not count."""
        procfs.reap(self.pid)
        return self.pid > 0 and procfs.start_ticks(self.pid) == self.start_ticks

    @property
    def processes(self) -> list[int]:
        """Pids of the server and everything it started."""
        return procfs.carriers(self.token)


class State(msgspec.Struct):
    """The servers of a stack, by name."""

    servers: dict[str, ServerState] = {}

    @classmethod
    def load(cls, settings: StackSettings) -> State:
        """The recorded state; empty where none, or none that can be read, is there."""
        try:
            return msgspec.json.decode(_path(settings).read_bytes(), type=cls)
        except (OSError, *UNREADABLE):
            return cls()

    def save(self, settings: StackSettings) -> None:
        """Write the state; a reader sees the old one or the new one."""
        path = _path(settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".part")
        half.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        half.replace(path)


def _path(settings: StackSettings) -> Path:
    return settings.home / "state.json"
