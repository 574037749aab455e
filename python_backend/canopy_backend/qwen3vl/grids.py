"""Grids to what the vision tower needs of them: learned positions, rotary positions, frames.

Source: ``transformers.vision_utils``, for square tables with aligned corners and bilinear weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from canopy_backend.packing import runs
from canopy_backend.qwen3vl.patches import Grid
from canopy_backend.qwen3vl.settings import VisionSettings

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class GridInputs:
    """Inputs of the vision tower beside the patches, a row a patch.

    Attributes:
        pos_idx: int64 ``[P, 4]``, rows of the table of learned positions.
        pos_w: float32 ``[P, 4]``, their weights.
        pos_ids: int64 ``[P, 2]``, row and column of the patch.
        seg: int64 ``[P]``, from 1, the frame of the patch; a patch sees its own frame only.
    """

    pos_idx: Int64Array
    pos_w: FloatArray
    pos_ids: Int64Array
    seg: Int64Array


def grid_inputs(grids: Sequence[Grid], settings: VisionSettings) -> GridInputs:
    """Inputs for the patches of one or more images and videos, one after another.

    Args:
        grids: Grids with even height and width, as :mod:`canopy_backend.qwen3vl.patches` makes them.
        settings: The model's.
    """
    made = {(height, width): _frame(height, width, settings) for height, width in {grid[1:] for grid in grids}}
    parts = [made[grid[1:]] for grid in grids]
    repeats = [frames for frames, _, _ in grids]

    def joined(column: int) -> npt.NDArray[np.generic]:
        return np.concatenate([np.tile(part[column], (count, 1)) for part, count in zip(parts, repeats, strict=True)])

    sizes = [height * width for frames, height, width in grids for _ in range(frames)]
    frames = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int64), sizes)
    return GridInputs(joined(0).astype(np.int64), joined(1).astype(np.float32), joined(2).astype(np.int64), frames)


def frame_calls(grids: Sequence[Grid], most: int) -> Iterator[tuple[int, int]]:
    """Cut the patches of grids into runs of whole frames, each a call of the vision tower.

    Attention is over the patches of one frame, but a call's mask has all its patches squared: that is what ``most``
    bounds.

    Args:
        grids: The grids whose patches stand one after another.
        most: Most patches of a call; a frame that has more stands alone.

    Returns:
        First and last patch (not included) of each run.
    """
    sizes = [height * width for frames, height, width in grids for _ in range(frames)]
    edges = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    for first, last in runs(sizes, most):
        yield edges[first], edges[last]


def _frame(height: int, width: int, settings: VisionSettings) -> tuple[Int64Array, FloatArray, Int64Array]:
    """Table rows, weights and positions of the patches of one frame, in the order of tokens."""
    merge, side = settings.merge, settings.grid_side
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    order = (height // merge, merge, width // merge, merge)
    row, column = (one.reshape(order).swapaxes(1, 2).reshape(-1) for one in (rows, columns))
    row_taps, row_weights = _taps(row, height, side)
    column_taps, column_weights = _taps(column, width, side)
    indices = (row_taps[:, :, None] * side + column_taps[:, None, :]).reshape(-1, 4)
    weights = (row_weights[:, :, None] * column_weights[:, None, :]).reshape(-1, 4)
    return indices, weights, np.stack([row, column], axis=1).astype(np.int64)


def _taps(index: Int64Array, size: int, side: int) -> tuple[Int64Array, FloatArray]:
    """The two table places around each index of an axis, corners aligned, and their weights."""
    # In float32 and in this order, as the model's own code has it: the floor of a whole number must be that number.
    place = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(place)
    offsets = np.arange(2)
    taps = np.clip(floor.astype(np.int64)[:, None] + offsets, 0, side - 1)
    distance = np.abs(place[:, None] - floor[:, None] - offsets.astype(np.float32))
    return taps, np.maximum(np.float32(1) - distance, np.float32(0))
