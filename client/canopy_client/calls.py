"""One call of a server, as the log and the trace have it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from canopy_backend.errors import CanopyError, code_of
from canopy_client import telemetry

logger = logging.getLogger(__name__)


@contextmanager
def recorded(message: Any, url: str) -> Iterator[dict[str, Any]]:
    """A gRPC call as a span and a line of the log: the model, how long it took, and of an error its type.

    Args:
        message: A request of the inference protocol.
        url: The server's address.

    Yields:
        Keyword arguments for the call, which carry the span to the server.
    """
    model = getattr(message, "model_name", "") or getattr(message, "name", "")
    started = time.monotonic()
    attributes: dict[str, Any] = {"rpc_system": "grpc", "server_address": url}
    if name := getattr(message, "id", ""):
        attributes["canopy_request_id"] = name
    try:
        with telemetry.span(model, kind="CLIENT", **attributes):
            yield telemetry.metadata()
    except CanopyError as error:
        known = {"code": code_of(error), "error": type(error).__name__, "seconds": _since(started)}
        logger.info("%s of %s refused: %s", model, url, known["error"], extra=known)
        raise
    logger.debug("%s of %s answered", model, url, extra={"seconds": _since(started)})


def _since(started: float) -> float:
    return round(time.monotonic() - started, 4)
