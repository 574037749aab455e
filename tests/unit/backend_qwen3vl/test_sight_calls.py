"""How items with pixels go through the graphs: bounded calls, whole frames, vectors where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from canopy_backend.encoding import node_vectors
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, Frame, ImageItem, Item, VideoItem
from canopy_backend.qwen3vl import sight as sight_module
from canopy_backend.qwen3vl import tower as tower_module
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.qwen3vl.sight import SeenItem, Sight, patches_of
from canopy_backend.tokenization import EncoderTokenizer

SETTINGS = VisionSettings(
    image_token=406, video_token=407, vision_start=403, vision_end=404, grid_side=4, hidden=2,
    image_pixels=(4096, 25_600), video_pixels=(4096, 65_536),
)  # fmt: skip


class Graphs:
    """Graphs that show what they got: a feature is the mean of its four patches, a vector that of its features."""

    def __init__(self) -> None:
        self.patches: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        self.queries = 0

    def vision(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        patches = inputs["patches"]
        self.patches.append(len(patches))
        visual = np.repeat(patches.mean(axis=1, dtype=np.float32).reshape(-1, 4).mean(axis=1)[:, None], 2, axis=1)
        return [visual, np.repeat(visual[None], 3, axis=0)]

    def means(self, inputs: Mapping[str, np.ndarray], segments: np.ndarray) -> np.ndarray:
        index, features = inputs["places"][:, 3], inputs["features"]
        answer = np.zeros((len(index), segments.shape[1] // 4, 2), np.float32)
        used = {(row, int(slot)) for row, line in enumerate(segments) for slot in line if slot}
        for row, slot in used:
            tokens = (segments[row] == slot) & (index[row] > 0)
            seen = features[row, 0, index[row, tokens] - 1, 0]
            answer[row, slot - 1] = [1, seen.mean() if len(seen) else 0]
        return answer

    def node(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.shapes.append(inputs["input_ids"].shape)
        return [self.means(inputs, inputs["slot_ids"])]

    def query(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.queries += len(inputs["input_ids"])
        return [self.means(inputs, inputs["attention_mask"])[:, 0]]


def png(level: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (64, 64), (level, level, level)).save(file, "PNG")
    return file.getvalue()


def clip(frames: int) -> VideoItem:
    shown = [Frame(10.0 * place, png(20 * place)) for place in range(frames)]
    return VideoItem(id="v", duration_s=10.0 * frames, frames=shown, segments=[Cue(31, 35, "the gate")])


def seen(item: Item, graphs: Graphs, tokenizer: EncoderTokenizer, *, whole: bool = True) -> SeenItem:
    sight = Sight(tokenizer, SETTINGS, graphs.vision, graphs.node, graphs.query if whole else None)
    hierarchy = balanced(len(fragment(item)))
    return sight.encode(sight.plan(item, fragment(item), hierarchy), hierarchy)


def test_an_image_is_seen_once_for_both_encoders(tokenizer_file: Path) -> None:
    graphs = Graphs()
    found = seen(ImageItem(id="i", image=png(200)), graphs, EncoderTokenizer(tokenizer_file, 256))
    assert (graphs.patches, graphs.queries) == ([16], 1)
    np.testing.assert_allclose(found.vectors, [[1, 200]], rtol=1e-5)
    np.testing.assert_allclose(found.whole, [1, 200], rtol=1e-5)


def test_no_call_is_larger_than_its_bound(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = EncoderTokenizer(tokenizer_file, 512)
    wide, narrow = Graphs(), Graphs()
    expected = seen(clip(12), wide, tokenizer)
    monkeypatch.setattr(tower_module, "MAX_PATCHES", 40)
    monkeypatch.setattr(sight_module, "MAX_TOKENS", 256)
    found = seen(clip(12), narrow, tokenizer)
    assert max(narrow.patches) <= 40 < max(wide.patches)
    assert all(patches % 16 == 0 for patches in narrow.patches)
    assert all(rows * tokens <= 256 or rows == 1 for rows, tokens in narrow.shapes)
    assert len(narrow.shapes) > len(wide.shapes)
    np.testing.assert_allclose(found.vectors, expected.vectors, rtol=1e-6)
    np.testing.assert_allclose(found.whole, expected.whole, rtol=1e-6)


def test_no_call_has_more_rows_than_an_encoder_takes(tokenizer_file: Path) -> None:
    tokenizer = EncoderTokenizer(tokenizer_file, 512)
    graphs = Graphs()
    sight = Sight(tokenizer, SETTINGS, graphs.vision, graphs.node, graphs.query, rows=2)
    item, hierarchy = clip(12), balanced(4)
    found = sight.encode(sight.plan(item, fragment(item), hierarchy), hierarchy)
    assert max(rows for rows, _ in graphs.shapes) <= 2
    np.testing.assert_allclose(found.vectors, seen(item, Graphs(), tokenizer).vectors, rtol=1e-6)


def test_a_clip_beyond_the_window_is_the_mean_of_its_topmost_nodes(tokenizer_file: Path) -> None:
    whole = seen(clip(12), Graphs(), EncoderTokenizer(tokenizer_file, 1024))
    assert whole.nodes.tolist() == list(range(7))
    plain = EncoderTokenizer(tokenizer_file, 1024)
    tokens = int(whole.weights[0]) + len(plain.head) + len(plain.tail)
    graphs = Graphs()
    found = seen(clip(12), graphs, EncoderTokenizer(tokenizer_file, tokens - 1))
    assert found.nodes.tolist() == list(range(1, 7))
    top = [0, 1]
    assert graphs.queries == len(top)
    vectors, weights = found.vectors[top], found.weights[top, None]
    mean = (vectors * weights).sum(axis=0)
    np.testing.assert_allclose(found.whole, mean / np.linalg.norm(mean), rtol=1e-6)
    nodes = node_vectors(balanced(4), found.nodes, found.weights, found.vectors)
    assert nodes.shape == (7, 2)


def test_patches_are_counted_before_any_is_made(tokenizer_file: Path) -> None:
    sight = Sight(EncoderTokenizer(tokenizer_file, 1024), SETTINGS, Graphs().vision, Graphs().node)
    item = clip(12)
    plan = sight.plan(item, fragment(item), balanced(4))
    assert patches_of(plan) == sum(len(look.take()) for look in plan.looks if look is not None)
    graphs = Graphs()
    assert seen(item, graphs, EncoderTokenizer(tokenizer_file, 1024), whole=False).whole is None
    assert sum(graphs.patches) == 16 * 12 < patches_of(plan) == 16 * 20
