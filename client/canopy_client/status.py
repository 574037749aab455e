"""What a gRPC status means: the project's error for each code and message, read off the one table in ``errors``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from canopy_backend.errors import (
    CODES,
    CanopyError,
    DeadlineExceeded,
    EncoderFailure,
    EncoderMismatch,
    InvalidItem,
    LimitExceeded,
    Overloaded,
    Restricted,
    ServerUnavailable,
)

_ENSEMBLE = re.compile(r"^in ensemble '[^']*', ")
# Numbers have as many digits as 64 bits hold: longer ones are nobody's sizes, and Python refuses to read them.
_LIMIT = re.compile(
    r"(?s)(?P<what>.*): (?P<actual>\d{1,18}) is over the limit (?P<name>\w{1,64})=(?P<limit>\d{1,18})\Z"
)
# gRPC itself refuses a message that is too long, on either side, with its size and the limit.
_MESSAGE_SIZE = re.compile(r"message larger than max \((?P<actual>\d{1,18}) vs\. (?P<limit>\d{1,18})\)")
_ITEM = re.compile(
    r"(?s)item (?P<index>\d{1,18})(?: \((?P<quote>['\"])(?P<item_id>.*?)(?P=quote)?\))?"
    r"(?:, field '(?P<field>[^']*)')?: (?P<reason>.*)"
)
_MISMATCH = re.compile(r"made by encoder .* this server runs|encoder revision")
# Triton has no code of its own for these, and the request is not at fault; another attempt, at best at another replica,
# can succeed. In turn: a model's process has died or was not heard of in time, or its shared memory cannot grow; a
# server that stops has unloaded the model; the response cache gave such a failure again, as an empty success, and left
# a step without its input; gRPC's own words for a call that the server ended, as one does that stops.
_AWAY = {
    # A stream tells no code: all of its errors come as INTERNAL. One without a word in it was read from the memory of a
    # process that had been given up and came back.
    "INTERNAL": re.compile(
        r"Stub process .*is not healthy|.*Failed to increase the shared memory pool size|.* has no available versions\Z"
        r"|.*Server is stopping, scheduler for model has stopped|[^A-Za-z]*\Z",
        re.DOTALL,
    ),
    "NOT_FOUND": re.compile(r".* has no available versions\Z", re.DOTALL),
    "INVALID_ARGUMENT": re.compile(
        r"(?:\[request id: [^\]]*\] )?expected \d+ inputs? but got \d+ inputs? for model "
        r"'(?:hierarchy|refinement|planner|tree_writer|node_encoder|query_encoder)'"
    ),
    "CANCELLED": re.compile(r"CANCELLED\Z"),
}
_PLACE = re.compile(r"(?<=\bitem )\d{1,18}")


def _classes_by_code() -> Mapping[str, type[CanopyError]]:
    """The most general class of each code: the first in the table, and the base class for INTERNAL."""
    classes: dict[str, type[CanopyError]] = {}
    for kind, code in CODES.items():
        classes.setdefault(code, kind)
    classes[CODES[CanopyError]] = CanopyError
    return MappingProxyType(classes)


CLASSES: Final = _classes_by_code()


def error_from_status(code: str, message: str) -> CanopyError:
    """The error that a status stands for.

    Args:
        code: Name of the gRPC status code, for instance ``"INVALID_ARGUMENT"``.
        message: The status message; sizes, limits and places of items are read back from it.

    Returns:
        An instance of the class that the server raised, as far as code and message tell; :class:`CanopyError` for
        codes that the project does not use.
    """
    message = _ENSEMBLE.sub("", message or "no message")
    if size := _MESSAGE_SIZE.search(message):
        return LimitExceeded(
            "message bytes", actual=int(size["actual"]), limit=int(size["limit"]), name="message_bytes"
        )
    if code in _AWAY and _AWAY[code].match(message):
        return ServerUnavailable(message)
    if code == "CANCELLED":
        # The server says so of work that it gave up because its time had passed.
        return DeadlineExceeded(message)
    kind = CLASSES.get(code)
    if kind is None:
        return CanopyError(f"{code}: {message}")
    if code == "INVALID_ARGUMENT":
        return _invalid(message)
    if code == "UNAVAILABLE":
        return _unavailable(message)
    if code == "INTERNAL" and "not finite" in message:
        return EncoderFailure(message)
    return kind(message)


def _unavailable(message: str) -> CanopyError:
    """Triton has one code for four reasons."""
    lowered = message.lower()
    if "protocol is restricted" in lowered:
        return Restricted(message)
    if "maximum queue size" in lowered or "for its turn; the limit is" in lowered:
        return Overloaded(message)
    if "timeout expired" in lowered:
        return DeadlineExceeded(message)
    return ServerUnavailable(message)


def call_error(error: Any, url: str) -> CanopyError:
    """The project's error for a failed call.

    Args:
        error: A ``grpc.RpcError`` with code and details, sync or async.
        url: Where the call went; named when no answer came.
    """
    mapped = error_from_status(error.code().name, error.details() or "")
    if type(mapped) is ServerUnavailable:
        return ServerUnavailable(f"no server answers at {url} ({mapped})")
    if type(mapped) is DeadlineExceeded:
        return DeadlineExceeded(f"no answer from {url} in time ({mapped})")
    return mapped


def _invalid(message: str) -> CanopyError:
    # From the start, and not searched for: it holds the whole message, and a search would try each place of it.
    if limit := _LIMIT.match(message):
        return LimitExceeded(limit["what"], actual=int(limit["actual"]), limit=int(limit["limit"]), name=limit["name"])
    if _MISMATCH.search(message):
        return EncoderMismatch(message)
    if item := _ITEM.search(message):
        return InvalidItem(
            item["reason"], index=int(item["index"]), item_id=item["item_id"] or None, field=item["field"]
        )
    return CLASSES["INVALID_ARGUMENT"](message)


def shifted(error: CanopyError, by: int) -> CanopyError:
    """The same error for a request that was cut out of a larger call: its item's index counts the whole call."""
    if isinstance(error, InvalidItem):
        return error if error.index is None else error.at(error.index + by)

    def shift(text: str) -> str:
        return _PLACE.sub(lambda place: str(int(place[0]) + by), text, count=1)

    if isinstance(error, LimitExceeded):
        return _retold(error, shift)
    return type(error)(shift(str(error)))


def placeless(error: LimitExceeded) -> LimitExceeded:
    """The same error without its item's index, for callers who did not make the request; the item's id stays."""
    return _retold(error, lambda what: _PLACE.sub("", what, count=1).replace("item  (", "item (", 1))


def _retold(error: LimitExceeded, change: Callable[[str], str]) -> LimitExceeded:
    what = str(error).rpartition(f": {error.actual} is over")[0]
    return LimitExceeded(change(what), actual=error.actual, limit=error.limit, name=error.name)
