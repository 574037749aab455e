"""Locks between commands: one at a time changes the stack, the environments or the models."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from canopy_backend.errors import StackError

#: Takes one line about a step.
Report: TypeAlias = Callable[[str], None]

_POLL_S: Final = 0.2


@contextlib.contextmanager
def locked(folder: Path, report: Report, *, timeout_s: float = 1800.0) -> Iterator[None]:
    """Hold the lock of a folder, which is made when absent; the kernel drops it when the holder dies.

    Raises:
        StackError: Another command held it for longer than ``timeout_s``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "canopy.lock"
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file.fileno(), path, report, timeout_s)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _acquire(descriptor: int, path: Path, report: Report, timeout_s: float) -> None:
    until, told = time.monotonic() + timeout_s, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = path.read_text(encoding="utf-8").strip()
        if time.monotonic() > until:
            raise StackError(f"process {holder} holds {path} for more than {timeout_s:.0f} s")
        if not told:
            report(f"waiting for another canopy command (process {holder})")
            told = True
        time.sleep(_POLL_S)
