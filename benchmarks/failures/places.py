"""Places to run a server in: with a small ``/dev/shm`` of its own, or behind a network link that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The name that clients look up, and where they do.
NAME: Final = "evidence.canopy.internal"
HOSTS: Final = "CANOPY_FAILURES_HOSTS"
_SHELL: Final = ("sh", "-ec")


def why_not() -> str:
    """Why this process may not make places, in words; empty where it may."""
    if missing := [program for program in ("unshare", "mount", "ip") if shutil.which(program) is None]:
        return f"needs {' and '.join(missing)}"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "needs the right to make namespaces (root)"


def privately() -> None:
    """Begin again in a mount namespace of our own, where a name service of our own can be set; does so once."""
    if os.environ.get(HOSTS):
        return
    folder = tempfile.mkdtemp(prefix="canopy-hosts-")
    hosts = Path(folder, "hosts")
    shutil.copyfile("/etc/hosts", hosts)
    command = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    again = [sys.executable, "-m", "benchmarks.failures", *sys.argv[1:]]
    os.environ[HOSTS] = str(hosts)
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *_SHELL, command, "sh", *again])


def leave() -> None:
    """Remove the name service's file."""
    if hosts := os.environ.get(HOSTS):
        shutil.rmtree(Path(hosts).parent, ignore_errors=True)


def resolve(addresses: list[str]) -> None:
    """Let :data:`NAME` stand for these addresses from now on: what a headless service does."""
    hosts = Path(os.environ[HOSTS])
    kept = [line for line in hosts.read_text(encoding="utf-8").splitlines() if NAME not in line]
    # Written over, not replaced: the file is mounted.
    hosts.write_text("\n".join([*kept, *(f"{address} {NAME}" for address in addresses)]) + "\n", encoding="utf-8")


def small_shm(mebibytes: int) -> list[str]:
    """A command that runs another one with a ``/dev/shm`` of its own."""
    return ["unshare", "--mount", *_SHELL, f'mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm && exec "$@"', "sh"]


@dataclass(frozen=True)
class Link:
    """A network namespace with one link to us.

    Attributes:
        namespace: Its name.
        address: The far end's.
    """

    namespace: str
    address: str

    def within(self) -> list[str]:
        """A command that runs another one at the far end."""
        return ["ip", "netns", "exec", self.namespace]

    def cut(self) -> None:
        """Take the far end down: what is sent arrives nowhere, and nobody is told."""
        _ip("-n", self.namespace, "link", "set", "far", "down")

    def mend(self) -> None:
        """Bring it up again."""
        _ip("-n", self.namespace, "link", "set", "far", "up")


@contextmanager
def link() -> Iterator[Link]:
    """A link for as long as the block runs."""
    made = Link(f"canopy-{os.getpid()}", "10.213.77.2")
    near = f"cn{os.getpid()}"
    _ip("netns", "add", made.namespace)
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", "far", "netns", made.namespace)
        _ip("addr", "add", "10.213.77.1/30", "dev", near)
        _ip("link", "set", near, "up")
        _ip("-n", made.namespace, "addr", "add", f"{made.address}/30", "dev", "far")
        _ip("-n", made.namespace, "link", "set", "far", "up")
        _ip("-n", made.namespace, "link", "set", "lo", "up")
        yield made
    finally:
        _ip("netns", "delete", made.namespace)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
