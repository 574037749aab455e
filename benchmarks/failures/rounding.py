"""Answers that differ in their last digits alone: what a batch computes depends a little on what else is in it."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import msgspec
import numpy as np

#: The gates' bound for an encoder in bfloat16, and far above what float32 does.
WITHIN: Final = 2e-3
#: Where a tree blob's checksum ends, and its vectors' sizes stand (dimension, fragments, nodes).
_SIZES: Final = struct.Struct("<HII")
_SIZES_AT: Final = 14
_CHECKED: Final = slice(0, 56)


def json_alike(answer: bytes, wanted: bytes) -> bool:
    """Whether two JSON texts are equal but for small differences of numbers."""
    return _alike(msgspec.json.decode(answer), msgspec.json.decode(wanted))


def vectors_alike(answer: bytes, wanted: bytes) -> bool:
    """Whether two float32 vectors are equal but for small differences."""
    return len(answer) == len(wanted) and _near(answer, wanted, np.float32)


def index_alike(answer: bytes, wanted: bytes) -> bool:
    """Whether two tree blobs, each with the item's vector behind it, are equal but for small differences of vectors."""
    if len(answer) != len(wanted) or answer[_CHECKED] != wanted[_CHECKED]:
        return False
    dimension, _, nodes = _SIZES.unpack_from(wanted, _SIZES_AT)
    vector = len(wanted) - 4 * dimension
    table = vector - 2 * nodes * dimension
    # The checksum in front of the spans covers the vectors, so it may differ.
    return (
        answer[_CHECKED.stop + 4 : table] == wanted[_CHECKED.stop + 4 : table]
        and _near(answer[table:vector], wanted[table:vector], np.float16)
        and _near(answer[vector:], wanted[vector:], np.float32)
    )


def _near(answer: bytes, wanted: bytes, kind: type[np.floating[Any]]) -> bool:
    left, right = (np.frombuffer(one, kind).astype(np.float64) for one in (answer, wanted))
    return bool(np.all(np.abs(left - right) <= WITHIN))


def _alike(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float | int) and not isinstance(right, bool):
        return math.isclose(left, right, abs_tol=WITHIN, rel_tol=0.0)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_alike(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_alike, left, right))
    return bool(left == right)
