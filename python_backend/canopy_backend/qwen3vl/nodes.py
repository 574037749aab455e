"""From an item, with pixels or without, to what a Qwen3-VL encodes for its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import plan_nodes
from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.fragments import Fragments, renderer
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import ImageItem, Item, VideoItem
from canopy_backend.pixels import BOUNDS, PixelBounds, clip_of, frames_of, picture_of
from canopy_backend.qwen3vl.chat import (
    ChatSequence,
    ImagePart,
    VideoPart,
    encode_content,
    encode_windows,
    positions_of,
)
from canopy_backend.qwen3vl.patches import Grid, image_grid, image_patches, resized, row_patches, video_grid, video_size
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.templates import node_text
from canopy_backend.tokenization import EncoderTokenizer

UInt8Array = npt.NDArray[np.uint8]
#: Frames that are kept at the size of their patches; a clip has no more by default.
_FITTING: Final = 32
Int32Array = npt.NDArray[np.int32]


class Shown(NamedTuple):
    """Frames of one item that share patches, at one size: what the vision tower makes of them depends on nothing else.

    Attributes:
        frames: Their places in the item.
        height: Patches of a column.
        width: Patches of a row.
    """

    frames: tuple[int, ...]
    height: int
    width: int

    @property
    def patches(self) -> int:
        """How many they have."""
        return self.height * self.width


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The pixels that a sequence sees.

    Attributes:
        part: What stands for them in the sequence.
        shown: What is shown, one for each row of the grid. Nodes of an item that lie over one another may show the
            same.
        patches: Makes the patches of one of them, uint8 ``[P, patch_size]``; done when they are encoded, so that
            those of an item are never in memory all at once.
    """

    part: ImagePart | VideoPart
    shown: tuple[Shown, ...]
    patches: Callable[[Shown], UInt8Array]

    @property
    def grid(self) -> Grid:
        """Of the patches."""
        return self.part.grid

    def take(self) -> UInt8Array:
        """All patches, uint8 ``[P, patch_size]``."""
        return np.concatenate([self.patches(one) for one in self.shown])


@dataclass(frozen=True, slots=True, eq=False)
class ContentPlan:
    """What has to be encoded for one item.

    Attributes:
        sequences: P sequences, none longer than the window.
        nodes: int32 ``[P]``, ascending, the node of each; one without is pooled from its children, as
            :func:`canopy_backend.encoding.node_vectors` does it.
        weights: int32 ``[P]``, tokens of each without the turns, at least 1.
        looks: The pixels of each sequence; ``None`` for one of text.
    """

    sequences: list[ChatSequence]
    nodes: Int32Array
    weights: Int32Array
    looks: list[Look | None]

    @property
    def grids(self) -> list[Grid]:
        """Of the images and videos, in the order of the sequences."""
        return [look.grid for look in self.looks if look is not None]


def plan_content(
    item: Item,
    fragments: Fragments,
    hierarchy: Hierarchy,
    tokenizer: EncoderTokenizer,
    settings: VisionSettings,
    bounds: PixelBounds = BOUNDS,
) -> ContentPlan:
    """The sequences of an item's nodes; pixels stand before the node's own text.

    A node of a clip has the frames of its span, with their times from the clip's start. One that is longer than the
    window has no sequence of its own. A leaf whose text is too long has several: the first with the pixels.

    Args:
        item: The item.
        fragments: Its fragments.
        hierarchy: The nodes over them.
        tokenizer: The node encoder's, with the turns of a chat.
        settings: The model's.
        bounds: What is decoded at most.

    Raises:
        InvalidItem: A picture cannot be decoded, or the pixels of one leaf alone are longer than the window.
    """
    if isinstance(item, ImageItem) and (picture := picture_of(item, bounds)) is not None:
        grid = image_grid(picture.shape[0], picture.shape[1], settings)
        look = Look(ImagePart(grid), (Shown((0,), *grid[1:]),), lambda _: image_patches(picture, settings)[0])
        return _with_pixels(item, fragments, hierarchy, tokenizer, settings, lambda _: look)
    if isinstance(item, VideoItem) and (clip := clip_of(item, bounds)) is not None:
        spans = np.stack([fragments.spans[hierarchy.first, 0], fragments.spans[hierarchy.last - 1, 1]], axis=1)
        runs = frames_of(item, spans).tolist()
        seen = Clip(*clip, settings)
        return _with_pixels(item, fragments, hierarchy, tokenizer, settings, lambda node: seen.look(*runs[node]))
    plan = plan_nodes(item, fragments, hierarchy, tokenizer)
    sequences = [ChatSequence(ids, *positions_of(len(ids), [], settings.merge)) for ids in plan.sequences]
    return ContentPlan(sequences, plan.nodes, plan.weights, [None] * len(sequences))


class Clip:
    """The frames of a clip, of which each node sees some.

    Args:
        frames: uint8 ``[T, H, W, 3]``.
        times: float64 ``[T]``, seconds.
        settings: The model's.
    """

    def __init__(self, frames: UInt8Array, times: npt.NDArray[np.float64], settings: VisionSettings) -> None:
        self._shape = frames.shape
        self._times: list[float] = times.tolist()
        self._settings = settings
        # A frame stands in up to three rows of patches: with the one before it, with the one behind it, alone.
        self._fitting = lru_cache(_FITTING)(lambda place, size: resized(frames[place], size))

    def look(self, first: int, last: int) -> Look:
        """What a node sees that shows the frames ``[first, last)``."""
        count, (_, height, width, _), step = last - first, self._shape, self._settings.temporal
        grid = video_grid(count, height, width, self._settings)
        size = video_size(count, height, width, self._settings)
        rows = [tuple(range(place, min(place + step, last))) for place in range(first, last, step)]
        return Look(
            VideoPart(grid, tuple(self._times[first:last])),
            tuple(Shown(row, *grid[1:]) for row in rows),
            lambda shown: row_patches([self._fitting(place, size) for place in shown.frames], self._settings),
        )


def _with_pixels(
    item: Item,
    fragments: Fragments,
    hierarchy: Hierarchy,
    tokenizer: EncoderTokenizer,
    settings: VisionSettings,
    look_of: Callable[[int], Look],
) -> ContentPlan:
    show = renderer(item, fragments)
    sequences: list[ChatSequence] = []
    nodes: list[int] = []
    looks: list[Look | None] = []
    for node in range(hierarchy.size):
        look = look_of(node)
        text = node_text(item, show(int(hierarchy.first[node]), int(hierarchy.last[node])))
        try:
            made = [encode_content([look.part, *([text] if text else [])], tokenizer, settings)]
        except InvalidRequest:
            if not hierarchy.is_leaf[node]:
                continue
            made = _leaf(item, look, text, tokenizer, settings)
        sequences += made
        nodes += [node] * len(made)
        looks += [look, *[None] * (len(made) - 1)]
    turns = len(tokenizer.head) + len(tokenizer.tail)
    weights = np.array([max(1, len(one.ids) - turns) for one in sequences], np.int32)
    return ContentPlan(sequences, np.array(nodes, np.int32), weights, looks)


def _leaf(
    item: Item, look: Look, text: str, tokenizer: EncoderTokenizer, settings: VisionSettings
) -> list[ChatSequence]:
    try:
        return encode_windows(look.part, text, tokenizer, settings)
    except InvalidRequest as error:
        raise InvalidItem(str(error), item_id=item.id) from None
