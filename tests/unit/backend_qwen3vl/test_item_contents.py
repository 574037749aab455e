"""A node of an item with pixels is the frames of its span, then its text; too long a node is left to its children."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from canopy_backend.encoding import plan_nodes
from canopy_backend.errors import InvalidItem
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, Frame, ImageItem, Item, TextItem, VideoItem
from canopy_backend.qwen3vl.nodes import ContentPlan, plan_content
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.qwen3vl.tiny_tokenizer import build_tokenizer

SETTINGS = VisionSettings(
    image_token=406, video_token=407, vision_start=403, vision_end=404, grid_side=4, hidden=32,
    image_pixels=(4096, 25_600), video_pixels=(4096, 65_536),
)  # fmt: skip


def png(level: int, height: int = 64, width: int = 64) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), (level, level, level)).save(file, "PNG")
    return file.getvalue()


def plan(item: Item, tokenizer: EncoderTokenizer) -> ContentPlan:
    fragments = fragment(item)
    return plan_content(item, fragments, balanced(len(fragments)), tokenizer, SETTINGS)


def patches(made: ContentPlan) -> np.ndarray:
    return np.concatenate([look.take() for look in made.looks if look is not None])


def words(sequence_ids: list[int]) -> str:
    return build_tokenizer().decode(sequence_ids, skip_special_tokens=False)


def test_an_image_stands_before_its_caption(tokenizer_file: Path) -> None:
    tokenizer = EncoderTokenizer(tokenizer_file, 256)
    made = plan(ImageItem(id="a", title="Weir", caption="At dawn.", image=png(9, 64, 96)), tokenizer)
    assert made.grids == [(1, 4, 6)]
    assert patches(made).shape == (24, 1536)
    assert made.nodes.tolist() == [0]
    text = words(made.sequences[0].ids)
    assert text.count("<|image_pad|>") == 6
    assert "<|vision_end|>Weir\nAt dawn.<|im_end|>" in text
    blank = plan(ImageItem(id="a", image=png(9)), tokenizer)
    assert "<|vision_end|><|im_end|>" in words(blank.sequences[0].ids)
    assert int(blank.weights[0]) == len(blank.sequences[0].ids) - len(tokenizer.head) - len(tokenizer.tail)


def test_a_node_of_a_clip_has_the_frames_of_its_span(tokenizer_file: Path) -> None:
    frames = [Frame(float(at), png(at)) for at in range(0, 60, 10)]
    item = VideoItem(id="v", duration_s=60, frames=frames, segments=[Cue(31, 35, "the gate")])
    made = plan(item, EncoderTokenizer(tokenizer_file, 512))
    assert made.nodes.tolist() == [0, 1, 2]
    assert made.grids == [(3, 4, 4), (2, 4, 4), (2, 4, 4)]
    whole, left, right = (words(sequence.ids) for sequence in made.sequences)
    assert [whole.count(time) for time in ("<5.0 seconds>", "<25.0 seconds>", "<45.0 seconds>")] == [1, 1, 1]
    # Three frames make two rows of which the last shows one frame twice.
    assert "<5.0 seconds>" in left
    assert "<20.0 seconds>" in left
    assert "<35.0 seconds>" in right
    assert "<50.0 seconds>" in right
    assert "the gate" in whole
    assert "the gate" in right
    assert "the gate" not in left
    # The level of the first frame of each row, in the order of the nodes.
    levels = patches(made)[::16, 0].tolist()
    assert levels == [0, 20, 40, 0, 20, 30, 50]


def test_an_inner_node_beyond_the_window_is_left_to_its_children(tokenizer_file: Path) -> None:
    frames = [Frame(float(at), png(at)) for at in range(0, 60, 10)]
    item = VideoItem(id="v", duration_s=60, frames=frames)
    whole, leaf = (len(plan(item, EncoderTokenizer(tokenizer_file, 512)).sequences[node].ids) for node in (0, 1))
    made = plan(item, EncoderTokenizer(tokenizer_file, whole - 1))
    assert made.nodes.tolist() == [1, 2]
    assert made.grids == [(2, 4, 4), (2, 4, 4)]
    assert len(patches(made)) == 64
    with pytest.raises(InvalidItem, match=r"'v'.*longer than the encoder's window"):
        plan(item, EncoderTokenizer(tokenizer_file, leaf - 1))


def test_a_leaf_with_too_much_text_has_its_pixels_once_and_all_of_its_text(tokenizer_file: Path) -> None:
    caption = " ".join(f"gate {place}" for place in range(60))
    item = ImageItem(id="i", caption=caption, image=png(9))
    whole = plan(item, EncoderTokenizer(tokenizer_file, 2048))
    tokenizer = EncoderTokenizer(tokenizer_file, 100)
    made = plan(item, tokenizer)
    assert len(made.sequences) > 2
    assert [look is None for look in made.looks] == [False, *[True] * (len(made.sequences) - 1)]
    assert made.nodes.tolist() == [0] * len(made.sequences)
    assert max(len(one.ids) for one in made.sequences) == 100
    head, tail = len(tokenizer.head), len(tokenizer.tail)
    inner = [token for one in made.sequences for token in one.ids[head : len(one.ids) - tail]]
    assert inner == whole.sequences[0].ids[head : len(whole.sequences[0].ids) - tail]
    assert made.weights.sum() == whole.weights.sum() == len(inner)


def test_items_without_pixels_are_planned_as_ever(tokenizer_file: Path) -> None:
    tokenizer = EncoderTokenizer(tokenizer_file, 64)
    for item in (
        TextItem(id="t", title="Weir", text="One sentence here. And another one there. " * 4),
        VideoItem(id="v", duration_s=70, segments=[Cue(1, 5, "a word"), Cue(40, 50, "more words")]),
        ImageItem(id="i", caption="At dawn."),
    ):
        fragments = fragment(item)
        hierarchy = balanced(len(fragments))
        expected = plan_nodes(item, fragments, hierarchy, tokenizer)
        made = plan_content(item, fragments, hierarchy, tokenizer, SETTINGS)
        assert [sequence.ids for sequence in made.sequences] == expected.sequences
        assert made.nodes.tolist() == expected.nodes.tolist()
        assert made.weights.tolist() == expected.weights.tolist()
        assert set(made.looks) == {None}
        for sequence in made.sequences:
            assert sequence.positions.tolist() == [list(range(len(sequence.ids)))] * 3


def test_a_broken_picture_names_its_item(tokenizer_file: Path) -> None:
    tokenizer = EncoderTokenizer(tokenizer_file, 256)
    with pytest.raises(InvalidItem, match="'a'"):
        plan(ImageItem(id="a", image=png(9)[:60]), tokenizer)
    frames = [Frame(0.0, png(1)), Frame(10.0, b"\x89PNG\r\n\x1a\n")]
    with pytest.raises(InvalidItem, match=r"frames\[1\]"):
        plan(VideoItem(id="v", duration_s=60, frames=frames), tokenizer)
