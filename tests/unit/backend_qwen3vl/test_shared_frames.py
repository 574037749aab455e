"""Frames that several nodes of a clip show alike are looked at once, and every node has the features of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from canopy_backend.qwen3vl import tower as tower_module
from canopy_backend.qwen3vl.nodes import Clip, Look, Shown
from canopy_backend.qwen3vl.patches import video_patches
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.qwen3vl.tower import Tower

SETTINGS = VisionSettings(
    image_token=406, video_token=407, vision_start=403, vision_end=404, grid_side=4, hidden=2,
    image_pixels=(4096, 25_600), video_pixels=(4096, 65_536),
)  # fmt: skip
#: Runs of frames as a clip of 12 frames in four segments has them, the root first.
RUNS = [(0, 12), (0, 6), (6, 12), (0, 3), (3, 6), (6, 9), (9, 12)]


def frames(count: int = 12, side: int = 64) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def looks(shown: np.ndarray, runs: Sequence[tuple[int, int]] = RUNS) -> list[Look]:
    clip = Clip(shown, 10.0 * np.arange(len(shown)), SETTINGS)
    return [clip.look(first, last) for first, last in runs]


class Graph:
    """A feature is the mean of its four patches; counts the patches of every call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.calls.append(len(inputs["patches"]))
        visual = np.repeat(
            inputs["patches"].mean(axis=1, dtype=np.float32).reshape(-1, 4).mean(axis=1)[:, None], 2, axis=1
        )
        return [visual, np.stack([visual + place for place in (1, 2, 3)])]


def own(look: Look) -> np.ndarray:
    """The features of one look by itself."""
    visual, deepstack = Graph()({"patches": look.take()})
    return np.concatenate([visual[None], deepstack])


def test_what_nodes_show_alike_is_looked_at_once() -> None:
    graph, every = Graph(), looks(frames())
    tower = Tower(graph, SETTINGS, every)
    for look in every:  # a call of the encoder for each, so that everything has to be kept meanwhile
        np.testing.assert_array_equal(tower.features([look])[0], own(look))
    # Six pairs of the root and of its halves; of the leaves two pairs from an odd frame on, and four frames alone.
    distinct = {shown for look in every for shown in look.shown}
    assert {shown.frames for shown in distinct} == {
        *((at, at + 1) for at in range(0, 12, 2)), (3, 4), (9, 10), (2,), (5,), (8,), (11,)
    }  # fmt: skip
    assert sum(graph.calls) == 16 * len(distinct) == 16 * 12
    assert sum(len(look.take()) for look in every) == 16 * (6 + 2 * 3 + 4 * 2)


def test_frames_at_another_size_are_other_frames() -> None:
    # The frames of a node share its budget of pixels.
    large = frames(4, 256)
    every = looks(large, [(0, 4), (0, 1), (0, 2)])
    assert [look.grid[1:] for look in every] == [(8, 8), (16, 16), (10, 10)]
    graph = Graph()
    found = Tower(graph, SETTINGS, every).features(every)
    for look, features in zip(every, found, strict=True):
        np.testing.assert_array_equal(features, own(look))
    assert sum(graph.calls) == 2 * 64 + 256 + 100


def test_a_node_shows_what_its_frames_are_as_a_video_by_themselves() -> None:
    shown = frames(12, 96)
    for look, (first, last) in zip(looks(shown), RUNS, strict=True):
        patches, grid = video_patches(shown[first:last], SETTINGS)
        assert look.grid == grid
        np.testing.assert_array_equal(look.take(), patches)


def test_without_room_to_keep_them_frames_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    every = looks(frames())
    seen = []
    for room in (0, 9, 8192):
        monkeypatch.setattr(tower_module, "KEPT_TOKENS", room)
        graph = Graph()
        tower = Tower(graph, SETTINGS, every)
        for look in every:
            np.testing.assert_array_equal(tower.features([look])[0], own(look))
        seen.append(sum(graph.calls))
    assert seen[0] == 16 * 20 > seen[1] > seen[2] == 16 * 12


def test_nothing_is_kept_that_no_later_node_shows() -> None:
    every = looks(frames())
    tower = Tower(Graph(), SETTINGS, every)
    for place, look in enumerate(every):
        tower.features([look])
        later = {shown for one in every[place + 1 :] for shown in one.shown}
        assert set(tower._kept) <= later
    assert not tower._kept


def test_a_sequence_without_pixels_has_no_features() -> None:
    graph, (look, *_) = Graph(), looks(frames())
    found = Tower(graph, SETTINGS, [None, look, None]).features([None, look, None])
    assert [one.shape for one in found] == [(4, 0, 2), (4, 24, 2), (4, 0, 2)]
    assert Tower(graph, SETTINGS, [None]).features([None])[0].shape == (4, 0, 2)


def test_patches_are_made_for_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_module, "MAX_PATCHES", 40)
    graph, (look, *_) = Graph(), looks(frames())
    made: list[Shown] = []

    def counted(shown: Shown) -> np.ndarray:
        made.append(shown)
        assert len(made) <= 2 * (len(graph.calls) + 1)
        return look.patches(shown)

    Tower(graph, SETTINGS, [look]).features([replace(look, patches=counted)])
    assert graph.calls == [32, 32, 32]
