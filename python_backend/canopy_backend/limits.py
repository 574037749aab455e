"""Limits of one request: published by the server, enforced by it, and read by the client to split larger calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from canopy_backend.errors import InvalidRequest, LimitExceeded

#: Digits of a limit: what 64 bits hold. Far longer numbers are refused by Python itself.
_MOST_DIGITS: Final = 18


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that one request may not exceed.

    Each is a parameter of the ``hierarchy`` model's configuration under the same name, so an operator changes them in
    one place and every client sees the change.

    Attributes:
        max_items: Items in one request.
        max_item_bytes: Bytes of one item's JSON, its tree and its pictures not counted.
        max_frames: Frames of one clip.
        max_picture_bytes: Bytes of one item's picture file, or of all its frames' files together.
        max_request_picture_bytes: Bytes of the picture files of one request.
        max_patches: Patches, of 16 x 16 pixels in two frames, that an encoder looks at for one request: all nodes
            without a vector together, each with the frames of its own span.
        max_fragments: Fragments (sentences, rows, segments) of one item.
        max_rows: Packed token rows of one request: what its nodes without a vector fill. The encoders' batch limit.
        max_queries: Queries in one ``embed_query`` request.
        max_query_chars: Code points of a query.
    """

    max_items: int = 64
    max_item_bytes: int = 1_048_576
    max_frames: int = 32
    max_picture_bytes: int = 4_194_304
    max_request_picture_bytes: int = 33_554_432
    max_patches: int = 262_144
    max_fragments: int = 4096
    max_rows: int = 1024
    max_queries: int = 256
    max_query_chars: int = 8192

    def check(self, name: str, actual: int, what: str) -> None:
        """Raise :class:`LimitExceeded` when ``actual`` is over the limit called ``name``."""
        limit: int = getattr(self, name)
        if actual > limit:
            raise LimitExceeded(what, actual=actual, limit=limit, name=name)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Limits:
        """Read limits from string parameters; absent ones keep their default, unknown ones are ignored.

        Raises:
            InvalidRequest: A value is not a positive integer.
        """
        values: dict[str, int] = {}
        for name in cls.__struct_fields__:
            if name in parameters:
                text = parameters[name]
                if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
                    raise InvalidRequest(f"parameter {name!r}: {text!r:.40} is not a positive integer")
                values[name] = int(text)
        return cls(**values)

    def to_parameters(self) -> dict[str, str]:
        """The limits as string parameters, the inverse of :meth:`from_parameters`."""
        return {name: str(getattr(self, name)) for name in self.__struct_fields__}
