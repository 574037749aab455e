"""What the local stack asks of its servers: a canary, whether a port is open, and what health says."""

from __future__ import annotations

import socket
from typing import Any, Final

import httpx

from canopy_backend.errors import DeadlineExceeded, Overloaded, ServerUnavailable
from canopy_client import canary
from canopy_client.canary import Canary

#: What may go away by waiting while a server starts.
PASSING: Final = (ServerUnavailable, DeadlineExceeded, Overloaded)


def call(name: str, host: str, ports: dict[str, int], *, timeout_s: float) -> Canary:
    """Send a server real requests; see :func:`canopy_client.canary.call`.

    Raises:
        CanopyError: The server refused or failed; not one of :data:`PASSING` means that waiting will not help.
    """
    return canary.call(name, f"{reachable(host)}:{ports['grpc']}", timeout_s=timeout_s)


def result(name: str, host: str, ports: dict[str, int], *, timeout_s: float) -> Canary:
    """As :func:`call`, an error being part of the result."""
    return canary.result(name, f"{reachable(host)}:{ports['grpc']}", timeout_s=timeout_s)


def listens(host: str, port: int) -> bool:
    """Whether anything accepts connections on a port."""
    try:
        with socket.create_connection((reachable(host), port), timeout=1.0):
            return True
    except OSError:
        return False


def health(host: str, http_port: int) -> tuple[bool, str]:
    """What the server says of itself: ready or not, and its version; ``(False, "")`` when it does not answer."""
    base = f"http://{reachable(host)}:{http_port}/v2"
    try:
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            ready = client.get(f"{base}/health/ready").status_code == httpx.codes.OK
            metadata: dict[str, Any] = client.get(base).json()
    except (httpx.HTTPError, ValueError):
        return False, ""
    return ready, str(metadata.get("version", ""))


def reachable(host: str) -> str:
    """An address to connect to, for one that a server listens on."""
    return "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 - compared, not bound
