"""Which processes are ours, asked of the kernel: by a token in their environment, never by a number alone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: Every process of a server inherits it; its value is new at each start, so a recycled pid cannot carry it.
TOKEN_VARIABLE: Final = "CANOPY_PROCESS_TOKEN"  # noqa: S105
_PROC: Final = Path("/proc")
_SHM: Final = Path("/dev/shm")  # noqa: S108
_POLL_S: Final = 0.1
_ORPHAN_S: Final = 4.0


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` when it is gone or has exited."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold blanks.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time that processes have used so far, together; those that are gone count as nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def carriers(token: str) -> list[int]:
    """Pids of the running processes that carry a token in their environment."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and start_ticks(int(entry.name)) is not None:
                found.append(int(entry.name))
    return sorted(found)


def end(token: str, leader: int, *, timeout_s: float) -> list[int]:
    """Stop every process that carries a token: SIGTERM to the leader, a bounded wait, SIGKILL to what is left.

    Returns:
        The pids that had to be killed.
    """
    running = carriers(token)
    if leader in running:
        _send(leader, signal.SIGTERM)
        running = _wait(token, leader, timeout_s)
    killed: list[int] = []
    # More than once: a process may have started another between the look and the signal. Python's resource trackers
    # come last: when the others have gone they remove what those left in shared memory, and end by themselves.
    for attempt in range(5):
        chosen = [pid for pid in running if attempt or not _is_tracker(pid)]
        for pid in chosen:
            _send(pid, signal.SIGKILL)
        killed += chosen
        running = _wait(token, leader, 2.0) if running else []
    return killed


def reap(pid: int) -> None:
    """Take the exit status of a child of ours, so that it does not stay as a zombie; others are left alone."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def remove_shared_memory(prefix: str) -> list[str]:
    """Remove the regions that a killed server left in ``/dev/shm``; returns their names."""
    if len(prefix) < 16:
        raise ValueError(f"{prefix!r} is too short to be one server's own prefix")
    removed = []
    for path in shared_memory(prefix):
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path.name)
    return removed


def shared_memory(prefix: str) -> list[Path]:
    """Regions in ``/dev/shm`` whose names start with a prefix."""
    return sorted(path for path in _SHM.iterdir() if path.name.startswith(prefix)) if _SHM.is_dir() else []


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _wait(token: str, leader: int, timeout_s: float) -> list[int]:
    """Wait until no process carries the token; returns those that still do."""
    until, orphaned = time.monotonic() + timeout_s, False
    while True:
        reap(leader)
        running = carriers(token)
        if leader not in running and not orphaned:
            # Without the server nothing of it ends in good order any more.
            until, orphaned = min(until, time.monotonic() + _ORPHAN_S), True
        if not running or time.monotonic() > until:
            return running
        time.sleep(_POLL_S)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
