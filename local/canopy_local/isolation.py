"""A second stack beside the first: the same environments and models, state and ports of its own."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

import msgspec

from canopy_local.settings import StackSettings

_PORTS = ("http_port", "grpc_port", "metrics_port", "critic_http_port", "critic_grpc_port", "critic_metrics_port")
_FIRST_PORT: Final = 10_000
_LAST_PORT: Final = 65_535
_GIVEN: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at the moment, all different.

    None is one of those that the kernel gives to outgoing connections: any process could be given it between now and
    the start of the server that it is for.
    """
    given = _given_by_the_kernel()
    chosen = [port for port in range(_FIRST_PORT, _LAST_PORT + 1) if port not in given]
    random.shuffle(chosen)
    with contextlib.ExitStack() as stack:
        free: list[int] = []
        # At the end the kernel's own choice, for a machine that leaves hardly any port to its servers.
        for port in (*chosen, *[0] * count):
            if len(free) == count:
                break
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                free.append(int(one.getsockname()[1]))
        return free


def _given_by_the_kernel() -> range:
    """Ports that outgoing connections get; none where the kernel does not say."""
    try:
        first, last = map(int, _GIVEN.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return range(0)
    return range(first, last + 1)


def isolated(shared: StackSettings, folder: Path) -> StackSettings:
    """Settings of a stack that can run beside the one of ``shared``.

    Args:
        shared: Whose environments and models are used, and built when missing.
        folder: The new home; must not exist yet. Removing it removes no environment and no model.
    """
    folder.mkdir(parents=True)
    for name in ("venvs", "models"):
        (shared.home / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(shared.home / name)
    return msgspec.structs.replace(shared, home=folder, **dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True)))
