"""Starting a server's process: its own session, its output to a file, and nothing of ours inherited."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from canopy_backend.errors import StackError
from canopy_local.triton_server import Launch

#: Runs before the server in its process: the kernel sends SIGTERM when the one who started it dies.
_TIED: Final = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGTERM), 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the starting process has gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(launch: Launch, log: Path, *, tied: bool) -> int:
    """Start a server and return its pid; the caller waits for it.

    Args:
        launch: Command and environment.
        log: File that takes its output; begun anew.
        tied: Let the server end when the calling thread ends, as for a demo or a test; otherwise it outlives us.

    Raises:
        StackError: The program cannot be run.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    command = launch.command
    if tied:
        command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
    if not os.access(command[0], os.X_OK):
        raise StackError(f"{command[0]} cannot be run; remove the environments folder and start again")
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), output, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], command, launch.environment, file_actions=actions, setsid=True)
