"""Which shapes each graph is optimised for.

A profile has the smallest, the usual and the largest shape of every input. Nodes are short and many, so most profiles
are narrow and tall; the server takes the first of a graph's profiles that a request fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from canopy_backend.errors import ExportError
from canopy_backend.packing import TOKENS_A_SLOT

#: Smallest, usual and largest value.
Range: TypeAlias = tuple[int, int, int]
Shape: TypeAlias = tuple[int, ...]
#: Shape of an input as the graph has it, -1 where it is free.
Inputs: TypeAlias = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A range of rows and of tokens in each, or of patches."""

    name: str
    rows: Range
    tokens: Range


@dataclass(frozen=True, slots=True)
class Profile:
    """The shapes of one optimisation profile.

    Attributes:
        name: Of its bucket.
        shapes: For each input its smallest, usual and largest shape.
    """

    name: str
    shapes: dict[str, tuple[Shape, Shape, Shape]]


#: Padded queries and packed nodes. The mask and the scores of a layer have rows x tokens x tokens numbers a head.
_TEXT: Final[tuple[Bucket, ...]] = (
    Bucket("narrow", (1, 64, 256), (16, 64, 64)),
    Bucket("usual", (1, 16, 64), (16, 128, 256)),
    Bucket("wide", (1, 1, 8), (16, 512, 2048)),
)
#: Rows with pixels: few, and long.
_PIXELS: Final[tuple[Bucket, ...]] = (
    Bucket("usual", (1, 4, 16), (16, 256, 1024)),
    Bucket("wide", (1, 1, 1), (16, 2048, 8192)),
)
#: Patches of one call: 16 x 16 pixels each, so an image of a million pixels has 4096.
_PATCHES: Final[tuple[Bucket, ...]] = (
    Bucket("usual", (1, 1, 1), (4, 1024, 4096)),
    Bucket("large", (1, 1, 1), (4, 4096, 8192)),
)
_QUERY: Final = {"input_ids", "attention_mask"}
_NODE: Final = {"input_ids", "segment_ids", "position_ids", "slot_ids"}
_LANGUAGE: Final = {"input_ids", "segment_ids", "position_ids", "last_index", "visual_index", "visual", "deepstack"}
_VISION: Final = {"patches", "pos_idx", "pos_w", "pos_ids", "seg"}


def profiles_for(inputs: Inputs) -> tuple[Profile, ...]:
    """The profiles of a graph, which is told by the names of its inputs.

    Raises:
        ExportError: No graph of this project has these inputs.
    """
    names = set(inputs)
    if names in (_QUERY, _NODE):
        buckets = _TEXT
    elif names == _LANGUAGE:
        buckets = _PIXELS
    elif names == _VISION:
        buckets = _PATCHES
    else:
        raise ExportError(f"inputs {sorted(names)}: not those of a query, node, language or vision graph")
    return tuple(_profile(bucket, inputs, packed=names == _NODE) for bucket in buckets)


def _profile(bucket: Bucket, inputs: Inputs, *, packed: bool) -> Profile:
    shapes = {}
    for name, shape in inputs.items():
        smallest, usual, largest = (
            _shape(name, shape, rows, _rounded(tokens) if packed else tokens)
            for rows, tokens in zip(bucket.rows, bucket.tokens, strict=True)
        )
        shapes[name] = (smallest, usual, largest)
    return Profile(bucket.name, shapes)


def _rounded(tokens: int) -> int:
    """A packed row's width: it has a slot for every fourth token."""
    return max(tokens, TOKENS_A_SLOT) // TOKENS_A_SLOT * TOKENS_A_SLOT


def _shape(name: str, shape: Shape, rows: int, tokens: int) -> Shape:
    """The shape with its free axes filled."""
    if name in _VISION:
        free = [tokens]
    elif name in ("visual", "deepstack"):
        free = [max(1, rows * tokens // 2)]
    elif name == "last_index":
        free = [rows, max(1, tokens // 64)]
    else:
        free = [rows, tokens]
    if shape.count(-1) != len(free):
        raise ExportError(f"input {name!r} {list(shape)}: expected {len(free)} free axes")
    values = iter(free)
    return tuple(next(values) if size == -1 else size for size in shape)
