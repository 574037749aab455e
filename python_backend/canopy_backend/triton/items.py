"""Items of a request."""

from __future__ import annotations

from canopy_backend.errors import InvalidRequest
from canopy_backend.items import Item, decode_items
from canopy_backend.limits import Limits
from canopy_backend.triton.tensors import Array, string_list


def read_items(tensor: Array, limits: Limits) -> list[Item]:
    """The items of an ``ITEMS`` tensor.

    Raises:
        InvalidRequest: There is none; a model step cannot answer with nothing.
        InvalidItem: One is malformed; names its place and its field.
        LimitExceeded: There are too many, or one is too large.
    """
    payloads = string_list(tensor)
    if not payloads:
        raise InvalidRequest("ITEMS holds no item")
    return decode_items(payloads, limits)
