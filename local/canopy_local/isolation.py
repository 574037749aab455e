"""A second stack beside the first: the same environments and models, state and ports of its own."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import msgspec

from canopy_local.settings import StackSettings

_PORTS = ("http_port", "grpc_port", "metrics_port", "critic_http_port", "critic_grpc_port", "critic_metrics_port")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at the moment, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


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
