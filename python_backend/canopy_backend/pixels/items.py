"""Pictures of items as arrays, frames of spans, and items filled from files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidItem
from canopy_backend.items import ImageItem, VideoItem
from canopy_backend.limits import Limits
from canopy_backend.pixels.bounds import BOUNDS, PixelBounds
from canopy_backend.pixels.clips import read_clip
from canopy_backend.pixels.images import decode_image, read_header
from canopy_backend.pixels.jpeg import shrink

UInt8Array = npt.NDArray[np.uint8]


def picture_of(item: ImageItem, bounds: PixelBounds = BOUNDS) -> UInt8Array | None:
    """The picture of an image, uint8 ``[height, width, 3]``; ``None`` where the item brings none.

    Raises:
        InvalidItem: Field ``image``; as :func:`canopy_backend.pixels.decode_image`.
    """
    return None if item.image is None else decode_image(item.image, bounds=bounds, item_id=item.id)


def clip_of(item: VideoItem, bounds: PixelBounds = BOUNDS) -> tuple[UInt8Array, npt.NDArray[np.float64]] | None:
    """The frames of a clip, uint8 ``[T, height, width, 3]``, and their times in seconds, float64 ``[T]``.

    ``None`` where the item brings no frame. All headers are read before the first frame is decoded.

    Raises:
        InvalidItem: Field ``frames[i].image``; as :func:`canopy_backend.pixels.decode_image`, or frames differ in
            size, or are together over ``max_pixels``.
    """
    if not item.frames:
        return None
    sizes = [
        read_header(frame.image, bounds=bounds, item_id=item.id, field=f"frames[{place}].image")[1:]
        for place, frame in enumerate(item.frames)
    ]
    if (total := sum(width * height for width, height in sizes)) > bounds.max_pixels:
        raise InvalidItem(f"{total} pixels are more than {bounds.max_pixels}", item_id=item.id, field="frames")
    frames: list[UInt8Array] = []
    for place, frame in enumerate(item.frames):
        field = f"frames[{place}].image"
        pixels = decode_image(frame.image, bounds=bounds, item_id=item.id, field=field)
        if frames and pixels.shape != frames[0].shape:
            (height, width), (first_height, first_width) = pixels.shape[:2], frames[0].shape[:2]
            reason = f"is {width} x {height} pixels, the first frame {first_width} x {first_height}"
            raise InvalidItem(reason, item_id=item.id, field=field)
        frames.append(pixels)
    return np.stack(frames), np.array([frame.at_s for frame in item.frames], np.float64)


def frames_of(item: VideoItem, spans: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """The frames that lie in spans of a clip, as runs of ``item.frames``.

    A span between two frames has the one nearest to its middle, so no node of a clip with frames is blind.

    Args:
        item: The clip.
        spans: integers ``[N, 2]`` in milliseconds, half-open, as fragments and nodes have them.

    Returns:
        int32 ``[N, 2]``, first frame and one past the last; ``[0, 0)`` where the clip has none.
    """
    times = np.array([frame.at_s for frame in item.frames], np.float64) * 1000
    spans = np.asarray(spans).reshape(-1, 2)
    if not len(times):
        return np.zeros((len(spans), 2), np.int32)
    runs = np.searchsorted(times, spans).astype(np.int32)
    blind = runs[:, 0] == runs[:, 1]
    middles = spans[blind].mean(axis=1)
    nearest = np.abs(times[None, :] - middles[:, None]).argmin(axis=1)
    runs[blind] = np.stack([nearest, nearest + 1], axis=1)
    return runs


def with_picture(item: ImageItem, payload: bytes, limits: Limits | None = None) -> ImageItem:
    """The item with the picture of a file, made smaller where it is too large for one.

    Raises:
        InvalidItem: Field ``image``; as :func:`canopy_backend.pixels.shrink`.
    """
    return msgspec.structs.replace(item, image=shrink(payload, limits=limits, item_id=item.id))


def with_clip(item: VideoItem, source: bytes | Path, limits: Limits | None = None) -> VideoItem:
    """The item with the length and the frames of a clip's file.

    Raises:
        InvalidItem: Field ``uri``; as :func:`canopy_backend.pixels.read_clip`.
    """
    clip = read_clip(source, limits=limits, item_id=item.id)
    return msgspec.structs.replace(item, duration_s=clip.duration_s, frames=clip.frames)
