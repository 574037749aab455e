"""Clips: the right frames at the right times, few of them decoded, and an error with a name for every broken file."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pixel_media import clip, clip_at, grey_at, light_above, sound, timeless, turned

from canopy_backend.errors import InvalidItem
from canopy_backend.limits import Limits
from canopy_backend.pixels import Clip, PixelBounds, decode_image, read_clip, read_header
from canopy_backend.pixels.bounds import ENCODER_CLIP_PIXELS, ENCODER_FRAME_PIXELS
from canopy_backend.pixels.jpeg import fitting, in_tokens
from canopy_backend.qwen3vl.patches import video_size
from canopy_backend.qwen3vl.settings import VisionSettings

pytest.importorskip("av", reason="PyAV is not installed")

EVERY_10_S = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
FRAGMENTED = (("movflags", "frag_keyframe+empty_moov"),)


def check(found: Clip, times: list[float], tolerance_s: float = 0.0) -> None:
    """Each frame has its time and shows what was to be seen then."""
    assert [frame.at_s for frame in found.frames] == pytest.approx(times, abs=tolerance_s + 1e-6)
    for frame in found.frames:
        grey = decode_image(frame.image).mean()
        assert abs(grey - grey_at(frame.at_s)) <= 3, frame.at_s


def refusal(payload: bytes | Path, bounds: PixelBounds | None = None, limits: Limits | None = None) -> str:
    with pytest.raises(InvalidItem) as caught:
        read_clip(payload, bounds=bounds or PixelBounds(), limits=limits, item_id="a")
    assert (caught.value.item_id, caught.value.field) == ("a", "uri")
    return caught.value.reason


@pytest.mark.parametrize(
    "payload",
    [
        clip(),
        clip(codec="mpeg4"),
        clip(form="webm", codec="libvpx-vp9"),
        clip(form="webm", codec="libvpx-vp9", options=(("live", "1"),)),
        clip(options=FRAGMENTED),
    ],
    ids=["h264", "mpeg4", "webm", "webm without index", "fragments"],
)
def test_one_frame_for_10_s_and_no_other_is_decoded(payload: bytes) -> None:
    found = read_clip(payload)
    assert found.duration_s == pytest.approx(65, abs=0.3)
    assert found.decoded == len(found.frames) == 7
    check(found, EVERY_10_S, 1.0)  # a coder may set a key frame somewhat later than it was told


def test_a_clip_on_disk_is_read_alike(tmp_path: Path) -> None:
    (tmp_path / "concat:x.bin").write_bytes(clip())
    assert read_clip(tmp_path / "concat:x.bin") == read_clip(clip())
    assert "cannot be read" in refusal(tmp_path / "missing.mp4")


@pytest.mark.parametrize("form", ["mp4", "webm"])
def test_few_key_frames_are_led_to_once(form: str) -> None:
    codec = "libx264" if form == "mp4" else "libvpx-vp9"
    found = read_clip(clip(form=form, codec=codec, key_every=1000))
    check(found, EVERY_10_S)
    assert 295 <= found.decoded <= 302  # up to the frame at 60 s, and what the decoder still held
    found = read_clip(clip(form=form, codec=codec, key_every=100))
    check(found, EVERY_10_S)
    assert 3 * 45 <= found.decoded <= 4 + 3 * 52


def test_a_long_clip_has_as_many_frames_as_an_item_may_bring() -> None:
    payload = clip(700, rate=1, key_every=2)
    found = read_clip(payload)
    assert len(found.frames) == found.decoded == 32
    check(found, [700 * place / 32 for place in range(32)], 2.0)
    assert [frame.at_s for frame in read_clip(payload, limits=Limits(max_frames=2)).frames] == [0, 350]


def test_a_still_of_one_frame_is_a_clip() -> None:
    found = read_clip(clip_at([0]))
    assert (len(found.frames), found.duration_s) == (1, pytest.approx(0.2))


def test_variable_frame_rates_show_what_is_seen_at_a_time() -> None:
    times = [0, 0.4, 5, 45, 45.2, 61, 64]
    found = read_clip(clip_at(times, key_every=1000))
    assert found.duration_s == pytest.approx(64.2, abs=0.3)
    assert [frame.at_s for frame in found.frames] == EVERY_10_S
    greys = [decode_image(frame.image).mean() for frame in found.frames]
    assert greys == pytest.approx([grey_at(at) for at in (0, 5, 5, 5, 5, 45.2, 45.2)], abs=3)


def test_a_clip_that_begins_late_counts_from_its_first_frame() -> None:
    found = read_clip(clip_at([3 + place / 5 for place in range(60)], options=FRAGMENTED))
    assert [frame.at_s for frame in found.frames] == [0.0, 10.0]
    assert decode_image(found.frames[0].image).mean() == pytest.approx(grey_at(3), abs=3)


#: A WebM file that fuzzing found: its one key frame is shown 14.604 s after its first frame, and is its end.
_KEY_AT_THE_END = (
    "GkXfo59ChoEBQveBAULygQRC84EIQoKEd2VibUKHgQJChYECmAAAAAAAAAAAAAAAAAAAAAAAAAAAAKkVMDUxRImIQKdwAAAAAAAWVK5rvq4B"
    "AAAAAAAANdeBAXPFiFm4XYaDrw5QnIEAIrWcg3VuZIiBAIaFVl9WUDmDgQHdHHyEHc1lAOCGsAAFAAAAAFfq/0kAZrIq17GDMDAwMDAwMDAA"
    "H0O2dUCq54EAo2CK94EB8YIBePCBWLCBELqBEBJUw2fYc0ViQ09ERTAwMAAfQ7Z1QKrngQCjoIE7AICCSYNCAADwAPYAOCQcGEoAADBgAAAQ"
    "v//9SIwAo5iBAfQAhgBAkpwAUAAAYAMAABk///WH//ejl4ED6ACGAECSnABO4AADYAAAAMn/wkgAo56BBSQcGEoAADCBBdyAgkmDQgAA8AD2"
    "ADgkHBhKAAAwYAD/5SAAHFO7a4EB8YIBePCBWA=="
)


def test_a_frame_at_the_very_end_is_inside_of_the_clip() -> None:
    found = read_clip(base64.b64decode(_KEY_AT_THE_END))
    assert [frame.at_s for frame in found.frames] == [found.duration_s] == [14.604]


def test_sound_before_the_first_picture_counts() -> None:
    found = read_clip(sound(26, picture_from=3))
    assert found.duration_s == pytest.approx(26, abs=0.3)
    assert found.frames[0].at_s == pytest.approx(3, abs=0.2)
    for frame in found.frames:
        assert decode_image(frame.image).mean() == pytest.approx(grey_at(frame.at_s), abs=3)


@pytest.mark.parametrize(
    ("matrix", "shape"),
    [((1, 0, 0, 1), (48, 64)), ((0, 1, -1, 0), (64, 48)), ((0, -1, 1, 0), (64, 48)), ((-1, 0, 0, -1), (48, 64))],
)
def test_pictures_of_a_turned_camera_are_upright(matrix: tuple[int, int, int, int], shape: tuple[int, int]) -> None:
    found = read_clip(turned(clip(2), *matrix))
    assert decode_image(found.frames[0].image).shape == (*shape, 3)


def test_a_turn_goes_the_way_that_players_turn() -> None:
    clockwise = decode_image(read_clip(turned(light_above(), 0, 1, -1, 0)).frames[0].image)
    assert clockwise[:, 40:].mean() > 240  # what was above is to the right
    assert clockwise[:, :24].mean() < 15


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1600, 1200), (864, 640)),
        ((1280, 720), (1024, 576)),
        ((854, 480), (864, 480)),
        ((640, 360), (640, 352)),
        ((638, 318), (638, 318)),
        ((720, 1280), (576, 1024)),
    ],
)
def test_frames_are_brought_to_whole_tokens_of_the_encoder(size: tuple[int, int], expected: tuple[int, int]) -> None:
    found = read_clip(clip(1, size=size, rate=2))
    _, width, height = read_header(found.frames[0].image)
    assert (width, height) == expected


@settings(deadline=None)
@given(st.integers(320, 4096), st.integers(320, 4096), st.integers(2, 32))
def test_the_encoder_cuts_two_or_more_frames_as_they_are(width: int, height: int, frames: int) -> None:
    most = min(ENCODER_FRAME_PIXELS, ENCODER_CLIP_PIXELS // frames)
    wide, tall = in_tokens(width, height, most)
    plain = fitting(width, height, most)
    assert wide * tall <= most
    assert max(abs(wide / plain[0] - 1), abs(tall / plain[1] - 1)) <= 0.1
    assume(min(wide, tall) >= 320)
    known = VisionSettings(image_token=0, video_token=1, vision_start=2, vision_end=3, grid_side=48, hidden=2)
    assert {video_size(count, tall, wide, known) for count in range(2, frames + 1)} == {(tall, wide)}


def test_many_frames_share_what_the_encoder_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canopy_backend.pixels.clips.ENCODER_CLIP_PIXELS", 7 * 1000)
    ((_, width, height),) = {read_header(frame.image) for frame in read_clip(clip()).frames}
    assert 950 < width * height <= 1000
    assert width / height == pytest.approx(64 / 48, abs=0.05)


def test_frames_are_lighter_where_they_would_be_too_heavy() -> None:
    heavy = sum(len(frame.image) for frame in read_clip(clip(25)).frames)
    found = read_clip(clip(25), limits=Limits(max_picture_bytes=heavy - 1))
    assert sum(len(frame.image) for frame in found.frames) < heavy
    assert "3 frames are more than 100 bytes" in refusal(clip(25), limits=Limits(max_picture_bytes=100))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "is no MP4 or WebM clip"),
        (b"GIF89a" + bytes(99), "is no MP4 or WebM clip"),
        (b"\0\0\0\x10ftypisom" + bytes(99), "cannot be read as a clip"),
        (clip(form="matroska"), "is no MP4 or WebM clip"),
        (sound(), "has no video stream"),
        (clip(1, codec="mjpeg"), "is coded in mjpeg"),
        (timeless(clip(2, codec="mpeg4")), "its length of 0 s is not between 0 and"),
        (clip()[:-200], "cannot be read as a clip"),
        (clip(options=FRAGMENTED)[:7000], "is cut short"),
        (clip(form="webm", codec="libvpx-vp9")[:3000], r"is cut short"),
        (clip(0.2, options=FRAGMENTED).replace(b"trun", b"free"), "has no key frame"),
    ],
)
def test_files_that_are_no_whole_clip_are_refused(payload: bytes, words: str) -> None:
    assert words in refusal(payload)


def test_bounds_are_kept() -> None:
    payload = clip()
    assert "64 x 48 pixels a frame are more than 3071" in refusal(payload, PixelBounds(max_clip_pixels=3071))
    assert "bytes are more than 99" in refusal(payload, PixelBounds(max_clip_bytes=99))
    assert "more than 99 packets" in refusal(payload, PixelBounds(max_clip_packets=99))
    assert "takes longer to read than 0 s" in refusal(payload, PixelBounds(max_clip_seconds=0))
    few = clip(key_every=1000)
    assert "more than 99 frames decoded; it has too few key frames" in refusal(few, PixelBounds(max_clip_frames=99))


def test_a_frame_that_grows_in_the_middle_of_a_clip_is_refused() -> None:
    """Headers of one size, coded pictures of another: the decoder itself keeps the bound."""
    large = clip(1, size=(640, 480), codec="mpeg4")
    assert len(read_clip(large, bounds=PixelBounds(max_clip_pixels=640 * 480)).frames) == 1
    assert "pixels a frame are more than" in refusal(large, PixelBounds(max_clip_pixels=64 * 48))
    lied = large.replace((640).to_bytes(2, "big") + (480).to_bytes(2, "big"), b"\0\x40\0\x30")
    assert lied != large
    assert refusal(lied, PixelBounds(max_clip_pixels=64 * 48))


FUZZ = """
import random, resource, sys
sys.path.insert(0, sys.argv[1])
from pixel_media import clip, damaged
from canopy_backend.errors import InvalidItem
from canopy_backend.pixels import PixelBounds, read_clip
import av, PIL.Image
files = [clip(4), clip(4, form="webm", codec="libvpx-vp9"), clip(4, codec="mpeg4"), clip(4, options=FRAGMENTED)]
for file in files:
    read_clip(file)
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 400 * 2**20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
source = random.Random(7)
whole = refused = 0
for turn in range(250):
    count = source.choice((1, 3, 30))
    edits = [(source.randrange(8, 9000), source.randrange(4), source.randrange(256)) for _ in range(count)]
    try:
        found = read_clip(damaged(files[turn % 4], edits), bounds=PixelBounds(max_clip_seconds=20), item_id="a")
        assert 1 <= len(found.frames) <= 32
        whole += 1
    except InvalidItem as error:
        assert (error.item_id, error.field) == ("a", "uri")
        refused += 1
print(whole, refused)
"""


def test_damaged_clips_never_crash_hang_or_fill_the_memory() -> None:
    code = FUZZ.replace("FRAGMENTED", repr(FRAGMENTED))
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    whole, refused = map(int, done.stdout.split())
    assert whole + refused == 250
    assert min(whole, refused) > 10


def test_without_the_library_the_item_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("canopy_backend.pixels.libraries.import_module", closed)
    assert "PyAV is not installed here; install canopy-triton[pixels]" in refusal(clip(2))
