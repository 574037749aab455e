"""Pictures of items as arrays, frames of spans, items from files with pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pixel_media import clip, file_of, gradient

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.evidence import Evidence, Region
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import (
    Cue,
    Frame,
    ImageItem,
    Item,
    TextItem,
    VideoItem,
    decode_item,
    encode_item,
    without_pictures,
)
from canopy_backend.limits import Limits
from canopy_backend.pixels import PixelBounds, clip_of, frames_of, picture_of, with_picture
from canopy_backend.sources import read_items
from canopy_backend.templates import item_text
from canopy_client.answer import Original
from canopy_client.cli.commands import items_of
from canopy_client.settings import Settings
from canopy_client.trace import original

RED, BLUE = (file_of(Image.new("RGB", (6, 4), colour)) for colour in ("red", "blue"))


def film(*times: float, duration_s: float = 100) -> VideoItem:
    return VideoItem(id="a", duration_s=duration_s, frames=[Frame(at, RED) for at in times])


def test_a_picture_on_the_wire_is_an_array_behind_it() -> None:
    item = decode_item(encode_item(ImageItem(id="a", image=file_of(gradient()))))
    assert isinstance(item, ImageItem)
    pixels = picture_of(item)
    assert pixels is not None
    assert np.array_equal(pixels, np.asarray(gradient()))
    assert picture_of(ImageItem(id="a", caption="x")) is None


def test_a_broken_picture_names_item_and_field() -> None:
    with pytest.raises(InvalidItem, match=r"item \('a'\), field 'image': is no PNG"):
        picture_of(ImageItem(id="a", image=b"x"))
    broken = VideoItem(id="a", duration_s=9, frames=[Frame(0, RED), Frame(5, b"x")])
    with pytest.raises(InvalidItem, match=r"item \('a'\), field 'frames\[1\]\.image': is no PNG"):
        clip_of(broken)


def test_frames_are_one_array_with_their_times() -> None:
    found = clip_of(VideoItem(id="a", duration_s=40, frames=[Frame(0, RED), Frame(12.5, BLUE)]))
    assert found is not None
    pixels, times = found
    assert (pixels.shape, pixels.dtype, times.dtype) == ((2, 4, 6, 3), np.uint8, np.float64)
    assert pixels[:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    assert times.tolist() == [0, 12.5]
    assert clip_of(VideoItem(id="a", duration_s=40)) is None


def test_frames_of_several_sizes_are_refused() -> None:
    other = file_of(Image.new("RGB", (4, 6)))
    with pytest.raises(InvalidItem, match=r"field 'frames\[1\]\.image': is 4 x 6 pixels, the first frame 6 x 4"):
        clip_of(VideoItem(id="a", duration_s=40, frames=[Frame(0, RED), Frame(1, other)]))


def test_frames_are_bounded_together_before_one_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canopy_backend.pixels.items.decode_image", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(InvalidItem, match=r"field 'frames': 72 pixels are more than 71"):
        clip_of(film(0, 1, 2), PixelBounds(max_pixels=71))


def test_a_node_has_the_frames_of_its_span() -> None:
    item = film(0, 10, 20, 30, 40, 50, 60, duration_s=65)
    assert frames_of(item, np.array([[0, 30_000], [30_000, 65_000], [0, 65_000]])).tolist() == [[0, 3], [3, 7], [0, 7]]


def test_nodes_of_a_clip_cover_its_frames_as_their_children_do() -> None:
    item = film(*range(0, 310, 10), duration_s=310)
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    spans = np.stack([fragments.spans[hierarchy.first, 0], fragments.spans[hierarchy.last - 1, 1]], axis=1)
    runs = frames_of(item, spans)
    assert runs[0].tolist() == [0, 31]
    for node in range(hierarchy.size):
        children = list(hierarchy.children(node))
        if children:
            assert [runs[node, 0], runs[node, 1]] == [runs[children[0], 0], runs[children[-1], 1]]
    assert sorted((runs[:, 1] - runs[:, 0])[np.asarray(hierarchy.is_leaf)].tolist()) == [3] * 9 + [4]


def test_a_span_between_two_frames_has_the_nearest() -> None:
    item = film(0, 100, duration_s=200)
    spans = np.array([[30_000, 60_000], [60_000, 90_000], [150_000, 200_000]])
    assert frames_of(item, spans).tolist() == [[0, 1], [1, 2], [1, 2]]
    assert frames_of(VideoItem(id="a", duration_s=9), spans).tolist() == [[0, 0]] * 3


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 999), max_size=32), st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6))))
def test_runs_are_the_frames_inside_or_one_beside(times: set[int], places: list[tuple[int, int]]) -> None:
    ordered = sorted(times)
    item = VideoItem(id="a", duration_s=1000, frames=[Frame(at, b"x") for at in ordered])
    spans = np.array([(start, start + length) for start, length in places], np.int64).reshape(-1, 2)
    for (start, end), (first, last) in zip(spans.tolist(), frames_of(item, spans).tolist(), strict=True):
        inside = [place for place, at in enumerate(ordered) if start <= at * 1000 < end]
        assert list(range(first, last)) == inside or (not inside and last - first == min(1, len(ordered)))


def test_a_picture_is_set_within_limits() -> None:
    item = ImageItem(id="a", title="t")
    assert with_picture(item, RED) == ImageItem(id="a", title="t", image=RED)
    with pytest.raises(InvalidItem, match=r"item \('a'\), field 'image': is more than 9 bytes"):
        with_picture(item, RED, Limits(max_picture_bytes=9))


def test_a_trace_holds_items_without_their_pictures() -> None:
    film_item, picture = film(0, 10, duration_s=20), ImageItem(id="a", caption="c", image=RED)
    words = TextItem(id="a", text="x")
    assert without_pictures(film_item) == VideoItem(id="a", duration_s=20)
    assert without_pictures(picture) == ImageItem(id="a", caption="c")
    assert without_pictures(words) is words
    assert len(film_item.frames) == 2
    region = Region(0, 1, 0, 0, 1, 0.5, "c")
    evidence = Evidence(
        item_id="a", modality="image", title="", text="c", regions=[region], unit="image", fragments=1,
        kept_fragments=1, tokens_in=1, tokens_kept=1, whole=True,
    )  # fmt: skip
    found = original(picture, evidence)
    assert isinstance(found, Original)
    assert found.item == ImageItem(id="a", caption="c")


def read(*paths: Path) -> list[Item]:
    return list(read_items(paths, pixels=True))


def test_pictures_are_brought_along_where_pixels_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "dawn_1.jpg"
    path.write_bytes(RED)  # its name says JPEG, its bytes are PNG
    (item,) = read(path)
    expected = ImageItem(id=f"{path.as_posix()}#0", title="dawn 1", source=path.as_posix(), uri=path.as_posix())
    expected.image = RED
    assert item == expected
    (tmp_path / "dawn_1.caption.txt").write_text("The weir\nat dawn.")
    (with_caption,) = read(tmp_path)
    assert isinstance(with_caption, ImageItem)
    assert (with_caption.caption, with_caption.image) == ("The weir at dawn.", RED)
    (without,) = read_items([tmp_path])
    assert isinstance(without, ImageItem)
    assert (without.caption, without.image) == ("The weir at dawn.", None)
    assert item_text(without) == item_text(with_caption)


def test_a_broken_picture_s_file_is_named(tmp_path: Path) -> None:
    for name, content in (("x.png", b"no picture"), ("x.png", RED[:-40]), ("empty.webp", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidItem, match=rf"{tmp_path.as_posix()}/{name}"):
            read(tmp_path / name)
    (tmp_path / "x.png").write_bytes(b"not looked at")
    (tmp_path / "x.caption.txt").write_text("Words.")
    assert len(list(read_items([tmp_path / "x.png"]))) == 1


def test_clips_come_with_the_transcript_beside_them(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed")
    (tmp_path / "tour.mp4").write_bytes(clip(25))
    (tmp_path / "tour.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:04.000\nHello.\n")
    (tmp_path / "alone.webm").write_bytes(clip(12, form="webm", codec="libvpx-vp9"))
    (tmp_path / "words.srt").write_text("1\n00:00:02,000 --> 00:00:09,000\nNo clip.\n")
    alone, tour, words = read(tmp_path)
    assert isinstance(tour, VideoItem)
    assert isinstance(alone, VideoItem)
    assert isinstance(words, VideoItem)
    assert (tour.title, tour.segments, tour.duration_s) == ("tour", [Cue(1.0, 4.0, "Hello.")], 25.0)
    assert (len(tour.frames), len(alone.frames), len(words.frames)) == (3, 2, 0)
    assert alone.segments == []
    assert decode_item(encode_item(tour)) == tour
    without = list(read_items([tmp_path]))
    assert [item.title for item in without] == ["tour", "words"]
    assert not any(item.frames for item in without if isinstance(item, VideoItem))


def test_a_clip_without_pixels_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "tour.mp4").write_bytes(b"x")
    with pytest.raises(InvalidRequest, match=r"tour\.mp4: a clip can be read with its pixels only"):
        list(read_items([tmp_path / "tour.mp4"]))
    pytest.importorskip("av", reason="PyAV is not installed")
    with pytest.raises(InvalidItem, match=r"tour\.mp4#0'\), field 'uri': is no MP4 or WebM clip"):
        read(tmp_path / "tour.mp4")


def test_text_alone_needs_neither_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "canopy_backend.pixels.libraries.import_module", lambda name: pytest.fail(f"{name} was imported")
    )
    (tmp_path / "a.txt").write_text("Words.")
    (tmp_path / "b.png").write_bytes(RED)
    (tmp_path / "b.caption.txt").write_text("Red.")
    assert [item_text(item) for item in read_items([tmp_path])] == ["a\nWords.", "b\nRed."]
    assert fragment(film(0, 10)).spans.shape == (3, 2)


class Server:
    """As much of a client as tells whether the server's encoder sees."""

    def __init__(self, sees: bool) -> None:
        self.sees = sees

    def sees_pixels(self) -> bool:
        return self.sees


def test_the_command_takes_pixels_where_the_encoder_sees_or_a_setting_says_so(tmp_path: Path) -> None:
    blind, seer = Server(False), Server(True)
    (tmp_path / "b.png").write_bytes(RED)
    (tmp_path / "b.caption.txt").write_text("Red.")
    (tmp_path / "c.jsonl").write_bytes(encode_item(ImageItem(id="far", caption="x", uri="https://pictures.test/p")))
    bare = items_of(Settings.load({"pixels": False}, {}), [tmp_path], seer)
    for without in (items_of(Settings.load({}, {}), [tmp_path], blind), bare):
        assert [item.image for item in without if isinstance(item, ImageItem)] == [None, None]
    hosts = {"CANOPY_PICTURE_HOSTS": "other.test"}
    for found in (
        items_of(Settings.load({"pixels": True}, hosts), [tmp_path], blind),
        items_of(Settings.load({}, {**hosts, "CANOPY_PIXELS": "true"}), [tmp_path], blind),
        items_of(Settings.load({}, hosts), [tmp_path], seer),
    ):
        first = next(found)
        assert isinstance(first, ImageItem)
        assert first.image == RED
    (tmp_path / "d.jsonl").write_bytes(encode_item(ImageItem(id="inline", image=RED)))
    (inline,) = items_of(Settings.load({}, {}), [tmp_path / "d.jsonl"], blind)
    assert isinstance(inline, ImageItem)
    assert inline.image is None
    with pytest.raises(InvalidItem, match=r"item \('far'\), field 'uri': .*not among the allowed hosts \(other.test\)"):
        next(found)
