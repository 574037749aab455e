"""Resident memory of a process tree, and the shared memory that Triton's stubs use."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import psutil

MIB = 1024 * 1024


@dataclass(frozen=True)
class Memory:
    """Memory at one moment, in MiB: of the server with its stubs, and of /dev/shm as a whole."""

    resident_mib: float
    shm_mib: float


def measure(pid: int) -> Memory:
    """Memory of the process ``pid`` and all its descendants.

    Shared pages count once a process, so the sum is an upper bound.
    """
    root = psutil.Process(pid)
    resident = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            resident += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Memory(resident / MIB, shutil.disk_usage("/dev/shm").used / MIB)
