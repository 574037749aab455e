"""Gates of the two graphs: torch and the file agree on shapes that the trace did not see, company changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Precision
from canopy_backend.qwen3vl.chat import ChatSequence, positions_of
from canopy_backend.qwen3vl.grids import grid_inputs
from canopy_backend.qwen3vl.patches import Grid
from canopy_backend.qwen3vl.rows import ChatRows, pack_rows, pad_rows, vectors_of
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_export.qwen3vl.graphs import LanguageGraph, VisionGraph
from canopy_export.qwen3vl.onnx_files import Array, load_file, run_torch

#: Largest difference between torch and a float32 file, and between packed, padded and lone sequences, in units of the
#: expected vector's length.
TOLERANCE: Final = 1e-5
#: Smallest cosine to the float32 model.
MIN_COSINE: Final[dict[Precision, float]] = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999}
#: Grids of the checks: none of them square, one of more than one row of frames.
GRIDS: Final[tuple[Grid, ...]] = ((1, 4, 6), (3, 2, 4), (1, 6, 2))
_SEED: Final = 20262

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Random input of the language graph.

    Attributes:
        sequences: Texts, some with images in them.
        visual: float32 ``[V, D]``.
        deepstack: float32 ``[3, V, D]``.
    """

    sequences: tuple[ChatSequence, ...]
    visual: FloatArray
    deepstack: FloatArray

    def rows(self, rows: ChatRows) -> dict[str, Array]:
        """All inputs of the graph for these rows."""
        return {**rows.inputs(), "visual": self.visual, "deepstack": self.deepstack}


def random_sample(
    settings: VisionSettings, vocabulary: int, hidden: int, texts: Sequence[tuple[int, int]], seed: int = _SEED
) -> Sample:
    """Random sequences.

    Args:
        settings: The model's.
        vocabulary: Number of token ids.
        hidden: Size of a visual embedding.
        texts: For each sequence its tokens of text, at least 2, and its frames, which stand behind the first token.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    sequences = []
    for tokens, frames in texts:
        ids = random.integers(0, vocabulary, tokens).tolist()
        spans: list[tuple[int, int, Grid]] = []
        at = 1
        for frame in range(frames):
            _, height, width = GRIDS[frame % len(GRIDS)]
            count = height * width // settings.merge**2
            ids[at:at] = [settings.image_token] * count
            spans.append((at, at + count, (1, height, width)))
            at += count + 1
        sequences.append(ChatSequence(ids, *positions_of(len(ids), spans, settings.merge)))
    count = max(1, sum(int(one.visual.max(initial=0)) for one in sequences))
    maps = random.standard_normal((4, count, hidden)).astype(np.float32)
    return Sample(tuple(sequences), maps[0], maps[1:])


def random_patches(settings: VisionSettings, grids: Sequence[Grid]) -> dict[str, Array]:
    """Random input of the vision graph for grids."""
    inputs = grid_inputs(grids, settings)
    shape = (len(inputs.seg), settings.patch_size)
    patches = np.random.default_rng(_SEED).integers(0, 256, shape, dtype=np.uint8)
    return {
        "patches": patches,
        "pos_idx": inputs.pos_idx,
        "pos_w": inputs.pos_w,
        "pos_ids": inputs.pos_ids,
        "seg": inputs.seg,
    }


def check_language(
    graph: LanguageGraph, path: Path, settings: VisionSettings, vocabulary: int, precision: Precision
) -> None:
    """Compare a file with its graph: two batch sizes and lengths; padded, packed and lone sequences.

    Raises:
        ExportError: They differ by more than the precision allows.
    """
    run = load_file(path, precision)
    for texts, width in (([(20, 2), (5, 0), (2, 1)], 64), ([(70, 3), (9, 1), (31, 0), (3, 0), (12, 2)], 128)):
        sample = random_sample(settings, vocabulary, graph.hidden, texts)
        padded = pad_rows(sample.sequences, width)
        expected = vectors_of(padded, run_torch(graph, sample.rows(padded))[0])
        for name, rows in (("padded", padded), ("packed", pack_rows(sample.sequences, width))):
            actual = vectors_of(rows, run(sample.rows(rows))[0])
            require(f"{path.name}: {name} rows of {width} tokens", expected, actual, precision)
        for place in range(len(texts)):
            rows = _alone(padded, place)
            actual = vectors_of(rows, run(sample.rows(rows))[0])
            require(f"{path.name}: sequence {place} alone", expected[place : place + 1], actual, precision)


def check_vision(graph: VisionGraph, path: Path, settings: VisionSettings, precision: Precision) -> None:
    """Compare a file with its graph on grids that the trace did not see, together and each frame group alone.

    Raises:
        ExportError: They differ by more than the precision allows.
    """
    run = load_file(path, precision)
    for grids in (GRIDS, GRIDS[1:2], (*GRIDS[2:], (2, 8, 4))):
        inputs = random_patches(settings, grids)
        expected, actual = run_torch(graph, inputs), run(inputs)
        for name, left, right in zip(("visual", "deepstack"), expected, actual, strict=True):
            size = left.shape[-1]
            require(f"{path.name}: {name} of grids {grids}", left.reshape(-1, size), right.reshape(-1, size), precision)


def compare(expected: Array, actual: Array) -> tuple[float, float]:
    """Smallest cosine of two sets of rows, and their largest difference in units of the expected row's length."""
    left, right = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
    lengths = np.linalg.norm(left, axis=-1)
    cosine = (left * right).sum(-1) / (lengths * np.linalg.norm(right, axis=-1))
    return float(cosine.min()), float((np.abs(left - right).max(-1) / lengths).max())


def _alone(rows: ChatRows, place: int) -> ChatRows:
    """One sequence of padded rows, without its padding."""
    here = slice(place, place + 1)
    end = int(rows.last_index[place, 0]) + 1
    return ChatRows(
        rows.input_ids[here, :end],
        rows.segment_ids[here, :end],
        rows.position_ids[here, :, :end],
        rows.last_index[here],
        rows.visual_index[here, :end],
        np.zeros((1, 2), np.int32),
    )


def require(what: str, expected: Array, actual: Array, precision: Precision) -> None:
    """Compare rows of vectors with what torch gives.

    Args:
        what: What is compared, for the error.
        expected: Torch's, ``[..., D]``.
        actual: The other's.
        precision: Arithmetic of the other, which the limits belong to.

    Raises:
        ExportError: They are farther apart than the precision allows, or not numbers.
    """
    cosine, distance = compare(expected, actual)
    # Written so that NaN fails too.
    if not cosine >= MIN_COSINE[precision]:
        raise ExportError(f"{what}: cosine {cosine:.6f} to torch, limit {MIN_COSINE[precision]}")
    if precision == "fp32" and not distance <= TOLERANCE:
        raise ExportError(f"{what}: differs from torch by {distance:.2e}, limit {TOLERANCE:.0e}")
