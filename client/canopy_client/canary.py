"""Canaries: real calls that need every process of a server. Health stays green when a model's process has died."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from canopy_backend.errors import CanopyError, DeadlineExceeded, Overloaded
from canopy_backend.items import ImageItem, Item, TextItem
from canopy_client.channels import Tls
from canopy_client.clients import CanopyClient
from canopy_client.deadline import Deadline
from canopy_client.retry import RetryPolicy

#: Names of the servers, as everywhere else.
EVIDENCE: Final = "evidence"
CRITIC: Final = "critic"
_ONCE: Final = RetryPolicy(attempts=1)
#: A picture of one grey pixel, as a PNG file: the probe has no library that writes one.
_PICTURE: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


class Canary(msgspec.Struct, frozen=True):
    """What a canary came back with.

    Attributes:
        passed: Every call gave a right answer.
        seconds: How long it took.
        error: What went wrong; empty when it passed.
        busy: It failed by no answer in time or by a full queue, as of a server with too much to do; a dead process is
            told at once.
    """

    passed: bool
    seconds: float
    error: str = ""
    busy: bool = False


def call(server: str, url: str, *, timeout_s: float, tls: Tls | None = None) -> Canary:
    """Send a server what needs all of its processes.

    Args:
        server: ``"evidence"`` or ``"critic"``.
        url: ``host:port`` of its gRPC endpoint.
        timeout_s: Seconds for everything together.
        tls: How to encrypt; ``None`` for plain text.

    Raises:
        CanopyError: The server refused, failed, answered wrongly or not in time.
    """
    started = time.monotonic()
    _CALLS[server](url, Deadline.after(timeout_s), tls)
    return Canary(True, round(time.monotonic() - started, 3))


def result(server: str, url: str, *, timeout_s: float, tls: Tls | None = None) -> Canary:
    """As :func:`call`, an error being part of the result."""
    started = time.monotonic()
    try:
        return call(server, url, timeout_s=timeout_s, tls=tls)
    except CanopyError as error:
        busy = isinstance(error, DeadlineExceeded | Overloaded)
        return Canary(False, round(time.monotonic() - started, 3), f"{type(error).__name__}: {error}", busy)


def _evidence(url: str, deadline: Deadline, tls: Tls | None) -> None:
    """A cold item, its indexing, and the item with its tree: together they pass through every model.

    Where the encoders see, a picture goes first, which alone reaches the vision tower.

    The server answers a query that it has seen from its cache, even when the query encoder has died. So each canary
    asks and brings something new.
    """
    word = secrets.token_hex(4)
    item = TextItem(id="canary", text=f"Canary {word} sings. The air is good.")
    with CanopyClient(url, retry=_ONCE, tls=tls) as client:

        def compress(one: Item, query: str) -> None:
            (evidence,) = client.compress(query, [one], deadline_s=deadline.timeout_s("canary"))
            if not evidence.regions:
                raise CanopyError("the canary item came back without a region")

        if client.sees_pixels(deadline_s=deadline.timeout_s("canary")):
            compress(ImageItem(id="canary", title=word, image=_PICTURE), f"Is canary {word} grey?")
        compress(item, f"Does canary {word} sing?")
        (indexed,) = client.index([item], deadline_s=deadline.timeout_s("canary"))
        compress(msgspec.structs.replace(item, tree=indexed.tree), f"Is the air of canary {word} good?")


def _critic(url: str, deadline: Deadline, tls: Tls | None) -> None:
    # Here, since they bring httpx and templates along: a third of what a probe of the evidence server would import.
    from canopy_client.llm.base import Message
    from canopy_client.llm.triton import TritonLanguageModel

    async def ask() -> None:
        model = TritonLanguageModel(url, retry=_ONCE, tls=tls)
        try:
            await model.generate([Message("user", "Say yes.")], max_tokens=2, deadline=deadline)
        finally:
            await model.close()

    # In a thread of its own: the caller may be inside an event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(asyncio.run, ask()).result()


_CALLS: Final[dict[str, Callable[[str, Deadline, Tls | None], None]]] = {EVIDENCE: _evidence, CRITIC: _critic}
