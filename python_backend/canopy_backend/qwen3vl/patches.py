"""Pixels to patches, as the model's own processor makes them: resize and cut. Scaling is the tower's first step.

Source: ``Qwen2VLImageProcessor`` and ``Qwen3VLVideoProcessor`` of transformers, with the limit on each frame's pixels
that the model's reference code has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidRequest
from canopy_backend.qwen3vl.settings import VisionSettings

#: Longest side of a frame for its shortest; the model knows nothing narrower.
MAX_RATIO: Final = 200

UInt8Array = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
#: Rows of frames, of patches in height, of patches in width.
Grid = tuple[int, int, int]


def image_size(height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Size to which an image is brought: near its own, in multiples of a token's side, within the pixel budget.

    Raises:
        InvalidRequest: It has no pixels, or is longer than :data:`MAX_RATIO` times its width.
    """
    return fitted(height, width, settings.factor, settings.image_pixels)


def fitted(height: int, width: int, factor: int, budget: tuple[int, int]) -> tuple[int, int]:
    """The same for any model of the family.

    Args:
        height: In pixels.
        width: In pixels.
        factor: Pixels of a token's side.
        budget: Fewest and most pixels.
    """
    return _fit(1, 1, height, width, factor, budget)


def video_size(frames: int, height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Size to which the frames of a video are brought; the budget is that of all frames together.

    Args:
        frames: Number of frames, at least 1.
        height: Of a frame, in pixels.
        width: Of a frame, in pixels.
        settings: The model's.

    Raises:
        InvalidRequest: As for :func:`image_size`.
    """
    factor, (fewest, most) = settings.factor, settings.video_pixels
    each = max(min(settings.frame_tokens * factor * factor, most // frames), int(1.05 * fewest))
    if min(height, width) < factor and min(height, width) > 0:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    even = round(frames / settings.temporal) * settings.temporal
    return _fit(frames, max(even, settings.temporal), height, width, factor, (fewest, each * frames))


def image_grid(height: int, width: int, settings: VisionSettings) -> Grid:
    """The grid of an image's patches, told from its size alone; as for :func:`image_size`."""
    tall, wide = image_size(height, width, settings)
    return 1, tall // settings.patch, wide // settings.patch


def video_grid(frames: int, height: int, width: int, settings: VisionSettings) -> Grid:
    """The grid of a video's patches, told from its size alone; as for :func:`video_size`."""
    tall, wide = video_size(frames, height, width, settings)
    return -(-frames // settings.temporal), tall // settings.patch, wide // settings.patch


def image_patches(image: UInt8Array, settings: VisionSettings) -> tuple[UInt8Array, Grid]:
    """One image as patches.

    Args:
        image: uint8 ``[H, W, 3]``, red, green, blue.
        settings: The model's.

    Returns:
        Patches uint8 ``[P, patch_size]``, in the order of tokens, and the grid ``(1, h, w)`` with P = h w.

    Raises:
        InvalidRequest: Wrong shape or type, or as for :func:`image_size`.
    """
    _check(image, 3)
    fitting = resized(image, image_size(image.shape[0], image.shape[1], settings))
    return _cut(fitting[None], settings, settings.temporal)


def video_patches(frames: UInt8Array, settings: VisionSettings) -> tuple[UInt8Array, Grid]:
    """The frames of a video as patches; the last frame is repeated where a patch would lack one.

    Args:
        frames: uint8 ``[T, H, W, 3]``, T at least 1.
        settings: The model's.

    Returns:
        Patches uint8 ``[P, patch_size]`` and the grid ``(t, h, w)`` with P = t h w.

    Raises:
        InvalidRequest: Wrong shape or type, or as for :func:`image_size`.
    """
    _check(frames, 4)
    count, height, width, _ = frames.shape
    size = video_size(count, height, width, settings)
    fitting, step = [resized(frame, size) for frame in frames], settings.temporal
    rows = [row_patches(fitting[place : place + step], settings) for place in range(0, count, step)]
    return np.concatenate(rows), video_grid(count, height, width, settings)


def row_patches(frames: Sequence[UInt8Array], settings: VisionSettings) -> UInt8Array:
    """Frames that share patches, one row of a video's grid; the last is repeated where a patch would lack one.

    Args:
        frames: uint8 ``[H, W, 3]`` each, of the size that :func:`video_size` gives; 1 to ``settings.temporal``.
        settings: The model's.

    Returns:
        uint8 ``[P, patch_size]``, in the order of tokens.
    """
    return _cut(np.stack([*frames, *[frames[-1]] * (settings.temporal - len(frames))]), settings)[0]


def scaling(settings: VisionSettings) -> tuple[FloatArray, FloatArray]:
    """What the tower takes off each number of a patch, and what it divides the difference by.

    Returns:
        Float32 ``[patch_size]`` twice.
    """
    each = settings.patch_size // 3
    mean, deviation = (np.array(one, np.float32) * 255 for one in (settings.mean, settings.deviation))
    return np.repeat(mean, each), np.repeat(deviation, each)


def scaled(patches: UInt8Array, settings: VisionSettings) -> FloatArray:
    """Patches as the model's own processor gives them, float32 ``[P, patch_size]``."""
    mean, deviation = scaling(settings)
    return (patches.astype(np.float32) - mean) / deviation


def resized(image: UInt8Array, size: tuple[int, int]) -> UInt8Array:
    """A picture uint8 ``[H, W, 3]`` at another height and width; itself where it has them.

    Bicubic, with the filter widened where it shrinks, as Pillow does it.
    """
    if image.shape[:2] == size:
        return image
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def _check(pixels: UInt8Array, dimensions: int) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != dimensions or pixels.shape[-1] != 3 or not pixels.size:
        raise InvalidRequest(
            f"pixels {pixels.dtype} {list(pixels.shape)}: expected uint8 with {dimensions} dimensions, the last of 3 "
            "colours, none empty"
        )


def _fit(frames: int, even: int, height: int, width: int, factor: int, budget: tuple[int, int]) -> tuple[int, int]:
    """Height and width as multiples of ``factor``, with ``even`` frames of that size within the budget."""
    if min(height, width) < 1 or max(height, width) > MAX_RATIO * min(height, width):
        raise InvalidRequest(f"pixels {height} x {width}: sides must be 1 or more, and {MAX_RATIO} to 1 at most")
    fewest, most = budget
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if even * tall * wide > most:
        shrink = math.sqrt(frames * height * width / most)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif even * tall * wide < fewest:
        grow = math.sqrt(fewest / (frames * height * width))
        tall = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    return tall, wide


def _cut(frames: UInt8Array, settings: VisionSettings, repeat: int = 1) -> tuple[UInt8Array, Grid]:
    """Frames ``[T, H, W, 3]`` of a fitting size to patches and their grid; each frame counts ``repeat`` times."""
    count, height, width, _ = frames.shape
    patch, merge, temporal = settings.patch, settings.merge, settings.temporal // repeat
    grid = count // temporal, height // patch, width // patch
    # Colours apart first, so that a row of a patch is one element, which is moved whole: ten times as fast.
    rows = np.ascontiguousarray(frames.transpose(0, 3, 1, 2)).view(f"V{patch}")
    # (t, temporal, colour, h, merge, patch, w, merge) to (t, h, w, merge, merge, colour, temporal, patch)
    blocks = rows.reshape(grid[0], temporal, 3, grid[1] // merge, merge, patch, grid[2] // merge, merge).transpose(
        0, 3, 6, 4, 7, 2, 1, 5
    )
    if repeat > 1:
        blocks = np.broadcast_to(blocks, (*blocks.shape[:6], repeat, patch))
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(-1, settings.patch_size), grid
