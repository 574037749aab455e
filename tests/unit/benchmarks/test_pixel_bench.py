"""The bench of items with pixels: the estimates that it holds times against, its media, and its page."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from benchmarks import estimate, pixel_media
from benchmarks.load import Figures
from benchmarks.pixel_host import Host, Seeking, clip_host
from benchmarks.pixel_page import PixelResults, page
from benchmarks.pixel_serving import CAPTIONS, PICTURES, TEXTS, Series, Served, Share, stage_seconds
from benchmarks.pixel_shortcuts import AS_SERVED, Shortcut
from canopy_backend.items import Frame, VideoItem
from canopy_export.qwen3vl.tiny import SIZES

ROOT = Path(__file__).resolve().parents[3]


def test_the_parameters_are_those_of_the_published_size() -> None:
    language, vision = SIZES["2b"]
    assert estimate.language_parameters(language) / 1e6 == pytest.approx(1409, abs=1)
    assert estimate.patch_flop(vision) / 1e9 == pytest.approx(0.66, abs=0.005)


def test_work_is_what_the_graphs_multiply() -> None:
    image = estimate.image_work(1024, 1024)
    assert (image.tokens, image.patches, image.shown) == (1050, 4096, 4096)
    assert image.flop / 1e12 == pytest.approx(7.55, abs=0.01)
    assert image.ms("H100") == pytest.approx(1000 * image.flop / (0.4 * 989e12))
    assert image.ms("L4") / image.ms("H100") == pytest.approx(989 / 121)
    assert estimate.Work((100,)).flop < 2 * estimate.Work((50,)).flop * 1.1


def test_a_clip_s_frames_are_looked_at_once_where_its_nodes_show_the_same() -> None:
    clip = estimate.clip_work(300)
    assert (clip.shown, clip.patches) == (42 * 1008, 28 * 1008)
    assert len(clip.sequences) == 16, "three nodes are longer than the window"
    wide = estimate.clip_work(300, window=8192)
    assert (wide.shown, wide.patches) == (73 * 1008, 36 * 1008)
    one = estimate.clip_work(30)
    assert one.shown == one.patches == 2 * 36 * 64
    # Frames are written at a size that they keep with any number of others, so halves show what the root does.
    two = estimate.clip_work(120)
    assert (two.shown, two.patches) == (14 * 2304, 12 * 2304)


def test_the_run_book_has_the_table_of_the_estimate() -> None:
    assert f"\n{estimate.page()}\n" in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_pictures_are_the_same_in_every_run_and_as_heavy_as_photographs() -> None:
    picture = pixel_media.photograph(160, 120, 3)
    assert picture.tobytes() == pixel_media.photograph(160, 120, 3).tobytes()
    assert picture.tobytes() != pixel_media.photograph(160, 120, 4).tobytes()
    for form in pixel_media.FORMATS:
        with Image.open(BytesIO(pixel_media.picture_file(picture, form))) as read:
            assert (read.format, read.size) == (form.upper(), (160, 120))
    assert 1 < 8 * len(pixel_media.picture_file(picture, "JPEG")) / (160 * 120) < 8  # bits a pixel


def test_every_frame_of_a_clip_is_decoded() -> None:
    payload = pixel_media.clip_file(2, rate=5, key_every_s=1, size=(64, 48))
    assert pixel_media.decode_all(payload) == 10


def test_a_clip_s_steps_are_measured() -> None:
    payload = pixel_media.picture_file(pixel_media.photograph(64, 48), "JPEG")
    item = VideoItem(id="v", duration_s=60, frames=[Frame(10.0 * place, payload) for place in range(6)])
    found = clip_host(item, 1)
    assert found.label == "clip, 60 s, 6 frames of 64 x 48"
    assert found.sent
    assert found.ms > 0
    assert set(found.encoder_ms) == set(estimate.PEAKS)


def test_stages_are_read_off_the_metrics() -> None:
    text = """# TYPE canopy_stage_seconds_sum counter
canopy_stage_seconds_bucket{stage="hierarchy",le="0.5"} 7
canopy_stage_seconds_sum{stage="hierarchy"} 1.5
canopy_stage_seconds_sum{model="hierarchy",stage="hierarchy",version="1"} 0.25
canopy_stage_seconds_sum{stage="vision_encoder"} 1e-2
canopy_stage_seconds_count{stage="hierarchy"} 7
"""
    assert stage_seconds(text) == {"hierarchy": 1.75, "vision_encoder": 0.01}


def test_what_a_first_step_waits_for_is_no_preprocessing() -> None:
    stages = {"hierarchy": 10.0, "vision_encoder": 3.0, "node_encoder": 4.0}
    assert Share("pictures", 20.0, stages, waits=True).preprocessing_ms == 3.0
    assert Share("texts", 20.0, stages, waits=False).preprocessing_ms == 10.0
    assert Share("trees", 20.0, {"refinement": 1.0}, waits=False).preprocessing_ms == 0.0


def host(label: str, resize_ms: float, *, sent: bool = True) -> Host:
    return Host(
        label=label, form="JPEG", file_mb=1.5, sent=sent, decode_ms=2.0, resize_ms=resize_ms, patch_ms=1.0,
        grid_ms=1.0, encoder_ms={"H100": 10.0, "A100": 30.0, "L4": 80.0},
    )  # fmt: skip


def results() -> PixelResults:
    def series(label: str, trees: bool, kb: float, p50: float) -> Series:
        return Series(label, trees, kb, [Figures(1, 100.0, p50, 2 * p50), Figures(2, 150.0, p50, 3 * p50)])

    return PixelResults(
        machine="a machine", busy=1.0, pillow="13", quick=False,
        host=[
            host("image, 1 megapixel", 0.0), host("image, 12 megapixels", 36.0),
            host("image, 40 megapixels", 400.0, sent=False),
        ],
        shortcuts=[Shortcut(label=AS_SERVED, ms=200.0, changed=0.0, mean=0.0, most=0)],
        seeking=[Seeking(label="a clip", frames=3000, taken=12, decoded=12, seek_ms=200.0, all_ms=1500.0)],
        served=Served(
            "2.51",
            "perf_analyzer",
            [
                series(TEXTS, False, 20.0, 9.0), series(PICTURES, False, 800.0, 90.0),
                series(PICTURES, True, 850.0, 3.5), series(CAPTIONS, True, 50.0, 1.5),
            ],
            [Share(PICTURES, 20.0, {"hierarchy": 10.0, "vision_encoder": 2.0, "node_encoder": 3.0}, waits=True)],
        ),
    )  # fmt: skip


def test_the_page_says_what_was_missed_and_how_many_cores_a_gpu_needs() -> None:
    text = page(results())
    assert "- H100: **missed** by 1 of 2: image, 12 megapixels, JPEG (4.0). 4 cores keep it busy" in text
    assert "- A100: **missed** by 1 of 2: image, 12 megapixels, JPEG (1.3). 2 cores keep it busy" in text
    assert "- L4: met by all 2. 1 core keeps it busy" in text
    assert "1.5 *" in text
    assert "written smaller where items are made" in text
    assert "| 7.5 |" in text  # decoding everything over seeking
    assert "cost +2.00 ms" in text
    assert "2.5 µs a kB" in text
    assert "| 5.0 | 25 % |" in text
    assert "`python -m benchmarks.pixels --write`" in text


def test_the_page_can_be_made_again_from_stored_results() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(results()), type=PixelResults)
    assert page(stored) == page(results())
