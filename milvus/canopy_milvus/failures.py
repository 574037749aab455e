"""Failures of the driver and of gRPC, told as this project's errors."""

from __future__ import annotations

from typing import Final

import grpc

from canopy_backend.errors import CanopyError, DeadlineExceeded, Overloaded, RetrievalError, ServerUnavailable
from canopy_milvus.driver import MilvusException

#: Milvus's own codes; the driver uses 2 too where no server answers.
SERVICE_UNAVAILABLE: Final = 2
TOO_MANY_REQUESTS: Final = 4
RATE_LIMIT: Final = 8
COLLECTION_NOT_FOUND: Final = 100
NOT_LOADED: Final = frozenset({101, 103})

_LONGEST_REASON: Final = 400


def translate(error: BaseException, *, action: str, address: str) -> CanopyError:
    """The error to raise for a failed call.

    Args:
        error: What the driver raised.
        action: The call's name, for the message.
        address: Where the call went, without credentials.
    """
    where = f"{action} at {address}"
    status = _status(error)
    reason = _reason(error)
    if status is not None:
        return _from_status(status, where, reason)
    code = error.code if isinstance(error, MilvusException) else None
    if code == SERVICE_UNAVAILABLE or "service not ready" in reason.lower():
        return ServerUnavailable(f"{where}: Milvus does not answer ({reason})")
    if code in NOT_LOADED or "wait_for_loading_collection" in reason:
        return ServerUnavailable(f"{where}: the collection is still being loaded ({reason})")
    if code in (RATE_LIMIT, TOO_MANY_REQUESTS):
        return Overloaded(f"{where}: Milvus limits the rate ({reason})")
    if "Retry timeout" in reason:
        return DeadlineExceeded(f"{where}: no answer in time ({reason})")
    if code == COLLECTION_NOT_FOUND:
        return RetrievalError(f"{where}: no such collection; it was dropped, or nothing is indexed yet ({reason})")
    return RetrievalError(f"{where}: {reason}")


def is_away(error: BaseException) -> bool:
    """Whether no server answered, so that the same call may succeed once one is back."""
    status = _status(error)
    if status is not None:
        return status is grpc.StatusCode.UNAVAILABLE
    return isinstance(error, MilvusException) and error.code == SERVICE_UNAVAILABLE


def _from_status(status: grpc.StatusCode, where: str, reason: str) -> CanopyError:
    if status is grpc.StatusCode.UNAVAILABLE:
        return ServerUnavailable(f"{where}: Milvus does not answer ({reason})")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{where}: no answer in time")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(f"{where}: {reason}")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return RetrievalError(f"{where}: not supported by this profile ({reason})")
    if status in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return RetrievalError(f"{where}: Milvus refuses the credentials; check MILVUS_TOKEN ({reason})")
    return RetrievalError(f"{where}: {reason}")


def _status(error: BaseException | None) -> grpc.StatusCode | None:
    """The gRPC status behind an error; the driver puts it in its own code, in the cause, or raises it bare."""
    for _ in range(4):
        if error is None:
            return None
        code = getattr(error, "code", None)
        found = code() if callable(code) else code
        if isinstance(found, grpc.StatusCode):
            return found
        error = error.__cause__
    return None


def _reason(error: BaseException) -> str:
    text = error.message if isinstance(error, MilvusException) else None
    if isinstance(error, grpc.RpcError) and callable(getattr(error, "details", None)):
        text = error.details()
    return str(text or error)[:_LONGEST_REASON]
