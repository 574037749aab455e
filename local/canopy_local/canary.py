"""Canaries: one real call to a server. Health alone stays green when a model's process has died."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import msgspec

from canopy_backend.errors import CanopyError, DeadlineExceeded, ServerUnavailable
from canopy_backend.items import TextItem
from canopy_client.clients import CanopyClient
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Message
from canopy_client.llm.triton import TritonLanguageModel
from canopy_client.retry import RetryPolicy
from canopy_local.environments import CRITIC

#: What may go away by waiting while a server starts.
PASSING: Final = (ServerUnavailable, DeadlineExceeded)
_ITEM: Final = TextItem(id="canary", text="Canaries were carried into mines. They fell silent before the miners did.")
_ONCE: Final = RetryPolicy(attempts=1)


class Canary(msgspec.Struct, frozen=True):
    """What a canary came back with.

    Attributes:
        passed: The call gave a right answer.
        seconds: How long it took.
        error: What went wrong; empty when it passed.
    """

    passed: bool
    seconds: float
    error: str = ""


def call(name: str, host: str, ports: dict[str, int], *, timeout_s: float) -> Canary:
    """Send one real request to a server.

    Raises:
        CanopyError: The server refused or failed; not one of :data:`PASSING` means that waiting will not help.
    """
    url = f"{reachable(host)}:{ports['grpc']}"
    started = time.monotonic()
    if name == CRITIC:
        _generate(url, timeout_s)
    else:
        _compress(url, timeout_s)
    return Canary(True, round(time.monotonic() - started, 3))


def result(name: str, host: str, ports: dict[str, int], *, timeout_s: float) -> Canary:
    """As :func:`call`, an error being part of the result."""
    started = time.monotonic()
    try:
        return call(name, host, ports, timeout_s=timeout_s)
    except CanopyError as error:
        return Canary(False, round(time.monotonic() - started, 3), f"{type(error).__name__}: {error}")


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


def _compress(url: str, timeout_s: float) -> None:
    with CanopyClient(url, deadline_s=timeout_s, retry=_ONCE) as client:
        (evidence,) = client.compress("What did canaries do?", [_ITEM])
    if not evidence.regions:
        raise CanopyError("the canary item came back without a region")


def _generate(url: str, timeout_s: float) -> None:
    async def ask() -> None:
        model = TritonLanguageModel(url, retry=_ONCE)
        try:
            await model.generate([Message("user", "Say yes.")], max_tokens=2, deadline=Deadline.after(timeout_s))
        finally:
            await model.close()

    # In a thread of its own: the caller may be inside an event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(asyncio.run, ask()).result()
