"""Options of a request: its parameters whose names start with ``canopy_``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from canopy_backend.errors import InvalidRequest
from canopy_backend.reading import UNREADABLE, told

PREFIX: Final = "canopy_"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may choose; without the prefix.

    Attributes:
        trace: Return every node that was looked at, with its score.
        keep_tables_whole: Keep each table's root, as for an aggregate question.
    """

    trace: bool = False
    keep_tables_whole: bool = False


#: Options of the ``compress`` ensemble's steps.
COMPRESS_OPTIONS: Final = frozenset(Options.__struct_fields__)


def parse_options(parameters: str, known: Collection[str]) -> Options:
    """Read the options among a request's parameters.

    Args:
        parameters: The parameters, one JSON object; those without our prefix are somebody else's and are ignored.
        known: Options that this model takes.

    Raises:
        InvalidRequest: They are no JSON object, an option is unknown to this model, or its value is not true or false.
    """
    if PREFIX not in parameters:
        return Options()
    try:
        values = msgspec.json.decode(parameters, type=dict[str, object])
    except UNREADABLE as error:
        raise InvalidRequest(f"the request's parameters cannot be read: {told(error)}") from None
    given: dict[str, bool] = {}
    for key, value in values.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name not in known:
            takes = ", ".join(PREFIX + one for one in sorted(known)) or "none"
            raise InvalidRequest(f"unknown parameter {key!r:.80}; this model takes {takes}")
        if not isinstance(value, bool):
            raise InvalidRequest(f"parameter {key!r}: {value!r:.40} is neither true nor false")
        given[name] = value
    return Options(**given)
