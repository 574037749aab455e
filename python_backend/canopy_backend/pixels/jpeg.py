"""Picture files that are too large for an item, written again smaller."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidItem
from canopy_backend.limits import Limits
from canopy_backend.pixels.bounds import BOUNDS, ENCODER_PIXELS, ENCODER_TOKEN, PixelBounds
from canopy_backend.pixels.images import decode_image
from canopy_backend.pixels.libraries import pillow

_QUALITIES: Final = (90, 75, 50)


def shrink(
    payload: bytes,
    *,
    limits: Limits | None = None,
    bounds: PixelBounds = BOUNDS,
    item_id: str | None = None,
    field: str | None = "image",
) -> bytes:
    """The file itself where an item may bring it, else a JPEG of it, at most as large as Qwen3-VL-Embedding looks at.

    The picture is decoded in either case, so that a damaged one is told where items are made.

    Args:
        payload: The file: PNG, JPEG or WebP.
        limits: What an item may bring.
        bounds: What may be decoded.
        item_id: Named by errors.
        field: Named by errors.

    Raises:
        InvalidItem: As :func:`canopy_backend.pixels.decode_image`, or even the smallest file is too large.
    """
    most = (limits or Limits()).max_picture_bytes
    pixels = decode_image(payload, bounds=bounds, item_id=item_id, field=field)
    if len(payload) <= most:
        return payload
    height, width, _ = pixels.shape
    small = resized(pixels, *fitting(width, height, ENCODER_PIXELS))
    for quality in _QUALITIES:
        written = as_jpeg(small, quality)
        if len(written) <= most:
            return written
    raise InvalidItem(f"is more than {most} bytes even as a small picture", item_id=item_id, field=field)


def fitting(width: int, height: int, most: int) -> tuple[int, int]:
    """Width and height of the same shape with at most ``most`` pixels; its own where they are not more."""
    if width * height <= most:
        return width, height
    scale = math.sqrt(most / (width * height))
    return max(1, math.floor(width * scale)), max(1, math.floor(height * scale))


def in_tokens(width: int, height: int, most: int) -> tuple[int, int]:
    """The same in whole tokens of Qwen3-VL-Embedding, so that a server cuts the picture as it is.

    Only where that changes a side by a tenth at most: other readers see the picture too.
    """
    size = fitting(width, height, most)
    if min(size) < 10 * ENCODER_TOKEN:
        return size
    wide, tall = (round(side / ENCODER_TOKEN) * ENCODER_TOKEN for side in size)
    if wide * tall <= most:
        return wide, tall
    return size[0] // ENCODER_TOKEN * ENCODER_TOKEN, size[1] // ENCODER_TOKEN * ENCODER_TOKEN


def resized(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """A picture, uint8 ``[h, w, 3]``, at another size, bicubic; itself where it has that size."""
    if pixels.shape[:2] == (height, width):
        return pixels
    library = pillow(None, None)
    return np.asarray(library.fromarray(pixels).resize((width, height), library.Resampling.BICUBIC))


def as_jpeg(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    """A picture, uint8 ``[height, width, 3]``, as a JPEG file."""
    file = BytesIO()
    pillow(None, None).fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()
