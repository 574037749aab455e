"""Sizes, grids, positions and rows: laws that hold for every size, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import ExportError, InvalidRequest
from canopy_backend.qwen3vl.chat import ChatSequence, ImagePart, VideoPart, encode_content, positions_of
from canopy_backend.qwen3vl.grids import frame_calls, grid_inputs
from canopy_backend.qwen3vl.patches import image_patches, image_size, row_patches, scaled, video_patches, video_size
from canopy_backend.qwen3vl.rows import cut_dimension, pack_rows, pad_rows, vectors_of
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.tokenization import EncoderTokenizer

SETTINGS = VisionSettings(image_token=90, video_token=91, vision_start=92, vision_end=93, grid_side=48, hidden=64)
SIDES = st.integers(1, 6000)
GRIDS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)).map(lambda g: (g[0], 2 * g[1], 2 * g[2])),
    min_size=1,
    max_size=4,
)


@given(SIDES, SIDES)
def test_an_image_keeps_its_shape_within_the_budget(height: int, width: int) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(InvalidRequest, match="200 to 1"):
            image_size(height, width, SETTINGS)
        return
    tall, wide = image_size(height, width, SETTINGS)
    assert tall % 32 == wide % 32 == 0
    assert tall * wide >= 4096
    # A long strip may end one token wide and no longer shrink in that direction.
    assert tall * wide <= 1_843_200 or min(tall, wide) == 32
    if min(height, width) >= 320:
        assert 0.8 < (tall / wide) / (height / width) < 1.25


@given(st.integers(1, 64), st.integers(16, 3000), st.integers(16, 3000))
def test_frames_share_the_budget(frames: int, height: int, width: int) -> None:
    tall, wide = video_size(frames, height, width, SETTINGS)
    assert tall % 32 == wide % 32 == 0
    most = min(768 * 32 * 32, 15_728_640 // frames)
    # An odd frame is doubled, which the budget does not see.
    assert tall * wide <= most * 1.5 or min(tall, wide) == 32


def test_golden_sizes() -> None:
    assert image_size(1080, 1920, SETTINGS) == (992, 1792)
    assert image_size(1, 1, SETTINGS) == (64, 64)
    assert video_size(3, 1080, 1920, SETTINGS) == (640, 1152)
    assert video_size(32, 1080, 1920, SETTINGS) == (512, 928)
    assert video_size(2, 20, 30, SETTINGS) == (32, 64)
    assert image_size(30_000, 200, SETTINGS) == (16_608, 96)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_pixels_of_another_form_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match="expected uint8"):
        image_patches(pixels, SETTINGS)
    with pytest.raises(InvalidRequest, match="expected uint8"):
        video_patches(pixels[None], SETTINGS)


def test_an_odd_frame_is_shown_twice() -> None:
    frames = np.random.default_rng(1).integers(0, 256, (3, 64, 64, 3)).astype(np.uint8)
    patches, grid = video_patches(frames, SETTINGS)
    assert grid == (2, 4, 4)
    last = patches.reshape(2, 16, 3, 2, 16, 16)[1]
    np.testing.assert_array_equal(last[:, :, 0], last[:, :, 1])


@pytest.mark.parametrize("patch", [4, 14, 16])
def test_a_patch_has_its_pixels_colour_by_colour_and_frame_by_frame(patch: int) -> None:
    own = msgspec.structs.replace(SETTINGS, patch=patch, mean=(0.5, 0.25, 0.75), deviation=(0.5, 0.25, 1.0))
    frames = np.random.default_rng(2).integers(0, 256, (2, 4 * patch, 6 * patch, 3), dtype=np.uint8)
    patches = row_patches(frames, own)
    place = 0
    for top, left in ((row, column) for row in range(0, 4, 2) for column in range(0, 6, 2)):
        for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            here = frames[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            expected = here.transpose(3, 0, 1, 2)
            np.testing.assert_array_equal(patches[place].reshape(expected.shape), expected)
            values = scaled(patches[place : place + 1], own).reshape(expected.shape)
            for colour, (mean, deviation) in enumerate(zip(own.mean, own.deviation, strict=True)):
                exact = (expected[colour] / 255 - mean) / deviation
                np.testing.assert_allclose(values[colour], exact, atol=1e-6)
            place += 1
    assert place == len(patches)


@settings(max_examples=25)
@given(GRIDS)
def test_grid_inputs_hold_every_patch_once(grids: list[tuple[int, int, int]]) -> None:
    inputs = grid_inputs(grids, SETTINGS)
    count = sum(t * h * w for t, h, w in grids)
    assert inputs.seg.shape == (count,)
    assert inputs.seg[-1] == sum(t for t, _, _ in grids)
    np.testing.assert_allclose(inputs.pos_w.sum(1), 1, atol=1e-5)
    assert inputs.pos_idx.min() >= 0
    assert inputs.pos_idx.max() < 48 * 48
    for frame in np.unique(inputs.seg):
        places = inputs.pos_ids[inputs.seg == frame]
        assert len(np.unique(places, axis=0)) == len(places)
    # Four patches that become one token stand together, row by row.
    first = inputs.pos_ids.reshape(-1, 4, 2)
    assert (np.ptp(first, axis=1) == 1).all()


@settings(max_examples=25)
@given(GRIDS, st.integers(1, 300))
def test_calls_are_whole_frames_within_the_bound(grids: list[tuple[int, int, int]], most: int) -> None:
    calls = list(frame_calls(grids, most))
    seg = grid_inputs(grids, SETTINGS).seg
    assert [first for first, _ in calls] == [0, *[last for _, last in calls[:-1]]]
    assert calls[-1][1] == len(seg)
    for first, last in calls:
        frames = np.unique(seg[first:last])
        assert np.isin(seg, frames).sum() == last - first
        assert last - first <= most or len(frames) == 1


def test_text_goes_on_behind_the_longer_side_of_a_frame() -> None:
    positions, visual = positions_of(9, [(2, 8, (1, 4, 6))], 2)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert visual.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 0]


def sequence(length: int, frame: bool, seed: int = 0) -> ChatSequence:
    ids = np.random.default_rng(seed).integers(1, 80, length).tolist()
    return ChatSequence(ids, *positions_of(length, [(1, 5, (1, 4, 4))] if frame else [], 2))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(6, 40), st.booleans()), min_size=1, max_size=9), st.booleans())
def test_rows_give_back_every_sequence(shapes: list[tuple[int, bool]], packed: bool) -> None:
    sequences = [sequence(length, frame, seed) for seed, (length, frame) in enumerate(shapes)]
    rows = (pack_rows if packed else pad_rows)(sequences, 64)
    seen = 0
    for one, (row, slot) in zip(sequences, rows.slots, strict=True):
        here = rows.segment_ids[row] == slot + 1
        assert rows.input_ids[row, here].tolist() == one.ids
        assert rows.position_ids[row][:, here].tolist() == one.positions.tolist()
        expected = np.where(one.visual > 0, one.visual + seen, 0)
        assert rows.visual_index[row, here].tolist() == expected.tolist()
        assert rows.last_index[row, slot] == np.flatnonzero(here)[-1]
        seen += int(one.visual.max())
    assert (rows.last_index >= 0).sum() == len(sequences)
    assert not rows.input_ids[rows.segment_ids == 0].any()
    answer = np.arange(rows.last_index.size, dtype=np.float32).reshape(*rows.last_index.shape, 1)
    found = vectors_of(rows, answer)[:, 0].tolist()
    assert found == [row * rows.last_index.shape[1] + slot for row, slot in rows.slots.tolist()]
    assert rows.inputs()["last_index"] is rows.last_index


@given(st.integers(1, 24))
def test_a_cut_vector_has_length_one_and_the_same_direction(dimension: int) -> None:
    vectors = np.random.default_rng(3).standard_normal((5, 24)).astype(np.float32)
    cut = cut_dimension(vectors, dimension)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    scale = np.linalg.norm(vectors[:, :dimension], axis=1, keepdims=True)
    np.testing.assert_allclose(cut * scale, vectors[:, :dimension], atol=1e-5)
    with pytest.raises(ValueError, match="dimension 25"):
        cut_dimension(vectors, 25)


def small_tokenizer(folder: Path, window: int) -> EncoderTokenizer:
    from canopy_export.qwen3vl.folder import chat_tokenizer
    from canopy_export.qwen3vl.tiny_tokenizer import build_tokenizer

    build_tokenizer().save(str(folder / "tokenizer.json"))
    chat_tokenizer(folder / "tokenizer.json", "Be brief.").save(str(folder / "chat.json"))
    return EncoderTokenizer(folder / "chat.json", window)


def test_pixels_beyond_the_window_are_refused(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path, 100)
    with pytest.raises(InvalidRequest, match="longer than the encoder's window, 100"):
        encode_content([ImagePart((1, 20, 20))], tokenizer, SETTINGS)
    assert len(encode_content([ImagePart((1, 12, 12))], tokenizer, SETTINGS).ids) <= 100


def test_times_must_go_with_the_grid(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path, 1000)
    with pytest.raises(InvalidRequest, match="2 rows of 2 frames has 2 times"):
        encode_content([VideoPart((2, 4, 4), (0.0, 10.0))], tokenizer, SETTINGS)
    with pytest.raises(InvalidRequest, match="has 0 times"):
        encode_content([VideoPart((2, 4, 4), ())], tokenizer, SETTINGS)


def test_settings_survive_a_file(tmp_path: Path) -> None:
    SETTINGS.save(tmp_path)
    assert VisionSettings.load(tmp_path) == SETTINGS
    (tmp_path / "qwen3vl.json").write_text('{"image_token": -1}')
    with pytest.raises(ExportError, match="image_token"):
        VisionSettings.load(tmp_path)
    with pytest.raises(ExportError, match="run the export"):
        VisionSettings.load(tmp_path / "missing")
