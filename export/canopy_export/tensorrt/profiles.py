"""Which shapes each graph is optimised for.

A profile has the smallest, the usual and the largest shape of every input. The server merges requests of equal width up
to ``max_batch_size`` rows, whatever that width is, so every profile of a text graph takes as many rows, and the widest
says how many that can be. A request with more rows than that is planned in wider ones (:mod:`canopy_backend.plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from canopy_backend.errors import ExportError
from canopy_backend.packing import TOKENS_A_SLOT, row_width

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


#: Tokens of one call at the widest. The mask and the scores of a layer have rows x tokens x tokens numbers a head: for
#: 8 rows of 2,048 tokens and 16 heads 0.5 billion.
CALL_TOKENS: Final = 16_384
#: Window of a text graph where nothing else is known, that of a Qwen3-VL.
WINDOW: Final = 2048
#: Upper ends of the profiles of a text graph, in tokens, below its widest row.
_WIDTHS: Final = (64, 256)
#: Rows that a profile is tuned for: nodes are short and many.
_USUAL_ROWS: Final = (64, 16, 1)
_USUAL_TOKENS: Final = (64, 128, 512)
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
#: The same graphs of encoders that see pixels: each row brings the features of its own visual tokens.
_PIXEL_QUERY: Final = _QUERY | {"places", "features"}
_PIXEL_NODE: Final = (_NODE - {"position_ids"}) | {"places", "features"}
_LANGUAGE: Final = {"input_ids", "segment_ids", "position_ids", "last_index", "visual_index", "visual", "deepstack"}
_VISION: Final = {"patches", "pos_idx", "pos_w", "pos_ids", "seg"}


def plan_rows(window: int) -> int:
    """Rows of one call of a text graph, in every one of its profiles.

    Args:
        window: Most tokens of one sequence.
    """
    return max(1, CALL_TOKENS // row_width(window))


def text_profiles(window: int) -> int:
    """How many profiles a text graph has."""
    return len(_text(window, plan_rows(window)))


def profiles_for(inputs: Inputs, window: int = WINDOW, rows: int | None = None) -> tuple[Profile, ...]:
    """The profiles of a graph, which is told by the names of its inputs.

    Args:
        inputs: Names and shapes.
        window: Most tokens of one sequence of a text graph.
        rows: Most rows of one call of a text graph; :func:`plan_rows` where not given.

    Raises:
        ExportError: No graph of this project has these inputs.
    """
    names = set(inputs)
    if names in (_QUERY, _NODE, _PIXEL_QUERY, _PIXEL_NODE):
        buckets = _text(window, rows or plan_rows(window))
    elif names == _LANGUAGE:
        buckets = _PIXELS
    elif names == _VISION:
        buckets = _PATCHES
    else:
        raise ExportError(f"inputs {sorted(names)}: not those of a query, node, language or vision graph")
    packed = names in (_NODE, _PIXEL_NODE)
    return tuple(_profile(bucket, inputs, packed=packed) for bucket in buckets)


def vision_profiles() -> int:
    """How many profiles the graph of a vision tower has."""
    return len(_PATCHES)


def _text(window: int, rows: int) -> tuple[Bucket, ...]:
    """Padded queries and packed nodes, up to the row that holds a whole window."""
    widest = row_width(window)
    ends = (*(width for width in _WIDTHS if width < widest), widest)
    return tuple(
        Bucket(name, (1, min(usual_rows, rows), rows), (16, min(usual_tokens, end), end))
        for name, end, usual_rows, usual_tokens in zip(
            ("narrow", "usual", "wide"), ends, _USUAL_ROWS, _USUAL_TOKENS, strict=False
        )
    )


def _profile(bucket: Bucket, inputs: Inputs, *, packed: bool) -> Profile:
    shapes = {}
    for name, shape in inputs.items():
        # A row of text has one line of features, one of pixels as many as tokens at most.
        counts = (1, max(1, bucket.tokens[1] // 2), bucket.tokens[2]) if name == "features" else bucket.tokens
        smallest, usual, largest = (
            _shape(name, shape, rows, _rounded(tokens) if packed and name != "features" else tokens)
            for rows, tokens in zip(bucket.rows, counts, strict=True)
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
