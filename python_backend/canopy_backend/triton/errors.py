"""From an exception to the server's error: code, stage, message."""

from __future__ import annotations

from typing import Any, Final

from canopy_backend.errors import CanopyError, code_of
from canopy_backend.triton.backend import pb_utils

#: The server's name of each gRPC code; it knows fewer codes than gRPC, so the nearest stands in.
TRITON_CODES: Final[dict[str, str]] = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "INTERNAL": "INTERNAL",
    "UNAVAILABLE": "UNAVAILABLE",
    "RESOURCE_EXHAUSTED": "UNAVAILABLE",
    "DEADLINE_EXCEEDED": "CANCELLED",
    "FAILED_PRECONDITION": "INTERNAL",
}


def describe(error: BaseException, stage: str) -> str:
    """What the caller reads: the stage, since the server does not name it, and the error's own sentence.

    An error that is not ours is named by its type alone, for its text may hold parts of an item.
    """
    if isinstance(error, CanopyError):
        return f"{stage}: {error}"
    return f"{stage}: unexpected {type(error).__name__}; the server's log has the place"


def to_triton(error: BaseException, stage: str) -> Any:
    """The server's ``TritonError`` for an exception."""
    utils = pb_utils()
    code = getattr(utils.TritonError, TRITON_CODES[code_of(error)])
    return utils.TritonError(describe(error, stage), code)
