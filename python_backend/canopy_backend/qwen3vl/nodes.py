"""From an item, with pixels or without, to what a Qwen3-VL encodes for its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import plan_nodes
from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.fragments import Fragments, renderer
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import ImageItem, Item, VideoItem
from canopy_backend.pixels import BOUNDS, PixelBounds, clip_of, frames_of, picture_of
from canopy_backend.qwen3vl.chat import ChatSequence, ImagePart, Part, VideoPart, encode_content, positions_of
from canopy_backend.qwen3vl.patches import Grid, image_patches, video_patches
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.templates import node_text
from canopy_backend.tokenization import EncoderTokenizer

FloatArray = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
#: Pixels of a node: the part that stands for them, and its patches.
_Seen = tuple[Part, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class ContentPlan:
    """What has to be encoded for one item.

    Attributes:
        sequences: P sequences, none longer than the window.
        nodes: int32 ``[P]``, ascending, the node of each; one without is pooled from its children, as
            :func:`canopy_backend.encoding.node_vectors` does it.
        weights: int32 ``[P]``, tokens of each without the turns, at least 1.
        patches: float32 ``[Q, patch_size]`` of all sequences in their order.
        grids: Of the images and videos that these patches make up.
    """

    sequences: list[ChatSequence]
    nodes: Int32Array
    weights: Int32Array
    patches: FloatArray
    grids: list[Grid]


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
    window has no sequence of its own.

    Args:
        item: The item.
        fragments: Its fragments.
        hierarchy: The nodes over them.
        tokenizer: The node encoder's, with the turns of a chat.
        settings: The model's.
        bounds: What is decoded at most.

    Raises:
        InvalidItem: A picture cannot be decoded, or one leaf alone is longer than the window.
    """
    if isinstance(item, ImageItem) and (picture := picture_of(item, bounds)) is not None:
        patches, grid = image_patches(picture, settings)
        show = renderer(item, fragments)
        return _with_pixels(item, hierarchy, tokenizer, settings, show, lambda _: (ImagePart(grid), patches))
    if isinstance(item, VideoItem) and (clip := clip_of(item, bounds)) is not None:
        frames, times = clip
        spans = np.stack([fragments.spans[hierarchy.first, 0], fragments.spans[hierarchy.last - 1, 1]], axis=1)
        runs = frames_of(item, spans).tolist()

        def seen(node: int) -> _Seen:
            first, last = runs[node]
            patches, grid = video_patches(frames[first:last], settings)
            return VideoPart(grid, tuple(times[first:last].tolist())), patches

        return _with_pixels(item, hierarchy, tokenizer, settings, renderer(item, fragments), seen)
    plan = plan_nodes(item, fragments, hierarchy, tokenizer)
    sequences = [ChatSequence(ids, *positions_of(len(ids), [], settings.merge)) for ids in plan.sequences]
    return ContentPlan(sequences, plan.nodes, plan.weights, np.zeros((0, settings.patch_size), np.float32), [])


def _with_pixels(
    item: Item,
    hierarchy: Hierarchy,
    tokenizer: EncoderTokenizer,
    settings: VisionSettings,
    show: Callable[[int, int], str],
    seen: Callable[[int], _Seen],
) -> ContentPlan:
    sequences: list[ChatSequence] = []
    nodes: list[int] = []
    patches: list[FloatArray] = []
    grids: list[Grid] = []
    for node in range(hierarchy.size):
        part, pixels = seen(node)
        text = node_text(item, show(int(hierarchy.first[node]), int(hierarchy.last[node])))
        try:
            sequences.append(encode_content([part, *([text] if text else [])], tokenizer, settings))
        except InvalidRequest as error:
            if hierarchy.is_leaf[node]:
                raise InvalidItem(str(error), item_id=item.id) from None
            continue
        nodes.append(node)
        patches.append(pixels)
        grids += [part.grid] if isinstance(part, ImagePart | VideoPart) else []
    turns = len(tokenizer.head) + len(tokenizer.tail)
    weights = np.array([max(1, len(one.ids) - turns) for one in sequences], np.int32)
    return ContentPlan(sequences, np.array(nodes, np.int32), weights, np.concatenate(patches), grids)
