"""Pictures: every kind to RGB as people see it, every broken one to an error that names item and field."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from pixel_media import damaged, file_of, gradient

from canopy_backend.errors import InvalidItem
from canopy_backend.limits import Limits
from canopy_backend.pixels import PixelBounds, decode_image, read_header, shrink

PICTURE = gradient()
RGB = np.asarray(PICTURE)


def refusal(payload: bytes, bounds: PixelBounds | None = None) -> str:
    with pytest.raises(InvalidItem) as caught:
        decode_image(payload, bounds=bounds or PixelBounds(), item_id="a", field="image")
    assert (caught.value.item_id, caught.value.field) == ("a", "image")
    assert str(caught.value).startswith("item ('a'), field 'image': ")
    return caught.value.reason


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_files_give_their_pixels(form: str, options: dict[str, bool]) -> None:
    payload = file_of(PICTURE, form, **options)
    pixels = decode_image(payload)
    assert (pixels.dtype, pixels.flags.c_contiguous) == (np.uint8, True)
    assert np.array_equal(pixels, RGB)
    assert read_header(payload) == (form, 24, 16)


def test_a_photograph_is_near_its_pixels() -> None:
    payload = file_of(PICTURE, "JPEG", quality=95, subsampling=0)
    assert read_header(payload) == ("JPEG", 24, 16)
    assert np.abs(decode_image(payload).astype(int) - RGB).max() <= 12


def grey_16() -> bytes:
    return file_of(Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16)))


def palette_with_alpha() -> bytes:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((1, 0), 1)
    return file_of(image, transparency=b"\x00\xff")


def animation(form: str) -> bytes:
    frames = [Image.new("RGB", (2, 1), colour) for colour in ("red", "blue")]
    return file_of(
        frames[0], form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {})
    )


RED, BLACK, WHITE = [255, 0, 0], [0, 0, 0], [255, 255, 255]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (file_of(Image.new("1", (2, 1), 1)), [WHITE, WHITE]),
        (file_of(Image.new("L", (2, 1), 7)), [[7, 7, 7], [7, 7, 7]]),
        (file_of(Image.new("LA", (2, 1), (0, 128))), [[127, 127, 127]] * 2),
        (file_of(Image.new("RGBA", (2, 1), (255, 0, 0, 0))), [WHITE, WHITE]),
        (file_of(Image.new("RGBA", (2, 1), (255, 0, 0, 255))), [RED, RED]),
        (file_of(Image.new("RGBA", (2, 1), (255, 0, 0, 51)), "WEBP", lossless=True), [[255, 204, 204]] * 2),
        (file_of(Image.new("RGB", (2, 1), "red"), transparency=(255, 0, 0)), [WHITE, WHITE]),
        (file_of(Image.new("RGB", (2, 1), "red").convert("P")), [RED, RED]),
        (palette_with_alpha(), [WHITE, RED]),
        (grey_16(), [BLACK, BLACK, [1, 1, 1], WHITE]),
        (file_of(Image.new("CMYK", (2, 1), (0, 0, 0, 255)), "JPEG"), [BLACK, BLACK]),
        (animation("PNG"), [RED, RED]),
        (animation("WEBP"), [RED, RED]),
        (file_of(Image.new("RGB", (1, 1), "red")), [RED]),
    ],
)
def test_every_kind_becomes_rgb_on_white(payload: bytes, expected: list[list[int]]) -> None:
    assert decode_image(payload).tolist() == [expected]


def test_several_pictures_in_a_photograph_s_file_are_read_as_the_first() -> None:
    payload = file_of(PICTURE, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))], quality=95)
    assert read_header(payload) == ("JPEG", 24, 16)
    assert decode_image(payload).shape == (16, 24, 3)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_photographs_are_turned_upright(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    payload = file_of(PICTURE, form, exif=exif)
    with Image.open(BytesIO(payload)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(decode_image(payload), expected)


def test_damaged_exif_leaves_the_pixels_as_they_are() -> None:
    payload = file_of(PICTURE, "WEBP", lossless=True, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert np.array_equal(decode_image(payload), RGB)


def test_strips_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = gradient(70, 90)
    whole = decode_image(file_of(picture))
    monkeypatch.setattr("canopy_backend.pixels.images._STRIP", 700)
    assert np.array_equal(decode_image(file_of(picture)), whole)
    faint = picture.convert("RGBA")
    faint.putalpha(Image.linear_gradient("L").resize(picture.size))
    strips = decode_image(file_of(faint))
    monkeypatch.undo()
    assert np.array_equal(decode_image(file_of(faint)), strips)


@pytest.mark.parametrize(
    "payload", [b"", b"\x89PNG", b"GIF89a", file_of(PICTURE, "GIF"), file_of(PICTURE, "BMP"), b"<svg/>"]
)
def test_other_formats_stay_closed_whatever_their_name(payload: bytes) -> None:
    assert "is no PNG, JPEG or WebP" in refusal(payload)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_file_that_is_cut_short_is_refused_at_every_place(form: str) -> None:
    payload = file_of(gradient(40, 30), form)
    end = len(payload) - 40  # what stands behind the last pixel can be missed
    for place in range(0, end, max(1, end // 60)):
        refusal(payload[:place])


def png_of(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file that only says how large it is."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in ((b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" * 99)), (b"IEND", b"")):
        parts.append(struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content)))
    return b"".join(parts)


def webp_of(width: int, height: int) -> bytes:
    """An extended WebP file that only says how large its canvas is."""
    canvas = struct.pack("<I", 0) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + canvas
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (png_of(30_000, 30_000), "more than 50000000"),
        (png_of(9_000, 9_000), "9000 x 9000 pixels are more than 50000000"),
        (png_of(10_000, 9_500), "more than 50000000"),
        (png_of(2**31 - 1, 2**31 - 1), ""),
        (png_of(0, 5), ""),
        (webp_of(16_383, 16_383), "16383 x 16383 pixels are more than 50000000"),
        (webp_of(2**24, 2**24), "16777216 x 16777216 pixels are more than 50000000"),
        (png_of(30_000, 100), "30000 x 100 pixels: one side is more than 200 times the other"),
        (png_of(1, 4_000), "1 x 4000 pixels: one side is more than 200 times the other"),
    ],
)
def test_sizes_over_a_bound_are_read_off_the_header(payload: bytes, words: str) -> None:
    assert words in refusal(payload)


def test_30_000_pixels_on_one_side_are_no_hindrance_in_themselves() -> None:
    assert decode_image(file_of(Image.new("1", (30_000, 150)))).shape == (150, 30_000, 3)


def test_bounds_are_the_caller_s() -> None:
    payload = file_of(PICTURE)
    assert "384" not in refusal(payload, PixelBounds(max_file_bytes=10))
    assert "24 x 16 pixels are more than 383" in refusal(payload, PixelBounds(max_pixels=383))
    assert decode_image(payload, bounds=PixelBounds(max_pixels=384)).shape == (16, 24, 3)


def test_scans_of_a_progressive_photograph_are_counted() -> None:
    payload = file_of(PICTURE, "JPEG", progressive=True)
    scans = payload.count(b"\xff\xda")
    assert scans > 5
    assert f"{scans} scans, more than {scans - 1}" in refusal(payload, PixelBounds(max_scans=scans - 1))
    assert decode_image(payload, bounds=PixelBounds(max_scans=scans)).shape == (16, 24, 3)


FILES = [
    file_of(PICTURE),
    file_of(PICTURE.convert("P")),
    file_of(PICTURE.convert("RGBA")),
    grey_16(),
    file_of(PICTURE, "JPEG"),
    file_of(PICTURE, "JPEG", progressive=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"),
    file_of(PICTURE.convert("CMYK"), "JPEG"),
    file_of(PICTURE, "WEBP"),
    file_of(PICTURE.convert("RGBA"), "WEBP", lossless=True),
    animation("WEBP"),
    animation("PNG"),
]
edits = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 3), st.integers(0, 255)), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FILES), edits)
def test_damaged_files_are_pixels_or_a_named_refusal(payload: bytes, changes: list[tuple[int, int, int]]) -> None:
    bounds = PixelBounds(max_pixels=1_000_000)
    try:
        pixels = decode_image(damaged(payload, changes), bounds=bounds, item_id="a", field="f")
    except InvalidItem as error:
        named = (error.item_id, error.field)
    else:
        named = ("a", "f")
        assert (pixels.dtype, pixels.ndim) == (np.uint8, 3)
        assert 0 < pixels.size <= 3 * bounds.max_pixels
    assert named == ("a", "f")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff", b"RIFF\xff\0\0\0WEBP"]),
    st.binary(max_size=200),
)
def test_any_bytes_are_a_named_refusal(head: bytes, payload: bytes) -> None:
    assert refusal(head + payload)


BOMBS = """
import resource, sys
from pathlib import Path
from canopy_backend.errors import InvalidItem
from canopy_backend.pixels import decode_image
import PIL.Image, PIL.PngImagePlugin, PIL.WebPImagePlugin, PIL.JpegImagePlugin
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 100 * 2**20,) * 2)
for name in sys.argv[1:]:
    try:
        print(name, decode_image(Path(name).read_bytes(), item_id="a").shape)
    except InvalidItem as error:
        print(name, error.field)
"""


def unpacks_to(megabytes: int) -> bytes:
    """A few kilobytes that zlib unpacks to many."""
    packer = zlib.compressobj(9)
    head = packer.compress(b"x" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + (packer.compress(b"x" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)) * (megabytes - 1)


def flat_webp(width: int, height: int) -> bytes:
    """A WebP file of one colour, which takes as many bytes at any size."""
    payload = file_of(Image.new("RGB", (8, 8)), "WEBP", lossless=True)
    place = payload.index(b"VP8L") + 9
    bits = int.from_bytes(payload[place : place + 4], "little") >> 28 << 28 | (height - 1) << 14 | (width - 1)
    return payload[:place] + bits.to_bytes(4, "little") + payload[place + 4 :]


def test_bombs_stay_within_100_mib(tmp_path: Path) -> None:
    assert decode_image(flat_webp(300, 200)).shape == (200, 300, 3)
    bombs = {
        "flat.png": png_of(30_000, 30_000, (b"IDAT", unpacks_to(1000))),
        "flat.webp": flat_webp(16_383, 16_383),
        "text.png": png_of(8, 8, (b"zTXt", b"Comment\0\0" + unpacks_to(1000))),
        "words.png": png_of(8, 8, (b"iTXt", b"Comment\0\1\0\0\0" + unpacks_to(1000))),
        "profile.png": png_of(8, 8, (b"iCCP", b"Profile\0\0" + unpacks_to(1000))),
    }
    for name, payload in bombs.items():
        (tmp_path / name).write_bytes(payload)
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, *bombs], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == [f"{name} image" for name in bombs]


def test_a_picture_that_an_item_may_bring_stays_as_it_is() -> None:
    payload = file_of(PICTURE)
    assert shrink(payload) is payload


def test_a_picture_that_is_too_large_is_written_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canopy_backend.pixels.jpeg.ENCODER_PIXELS", 30_000)
    payload = file_of(gradient(320, 300), compress_level=0)
    small = shrink(payload, limits=Limits(max_picture_bytes=len(payload) - 1))
    form, width, height = read_header(small)
    assert form == "JPEG"
    assert 29_000 < width * height <= 30_000
    assert abs(width / height - 320 / 300) < 0.01
    noise = file_of(Image.fromarray(np.random.default_rng(0).integers(0, 255, (150, 150, 3)).astype(np.uint8)))
    sizes = [len(shrink(noise, limits=Limits(max_picture_bytes=most))) for most in (22_000, 14_000)]
    assert 14_000 < sizes[0] <= 22_000
    assert sizes[1] <= 14_000
    with pytest.raises(InvalidItem, match="more than 5000 bytes even as a small picture"):
        shrink(noise, limits=Limits(max_picture_bytes=5_000))
    with pytest.raises(InvalidItem, match="cannot be decoded"):
        shrink(file_of(gradient(40, 30))[:-80])


def test_without_the_library_the_item_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(name: str, *rest: object) -> object:
        raise ImportError(name)

    monkeypatch.setattr("canopy_backend.pixels.libraries.import_module", closed)
    assert "Pillow is not installed here; install canopy-triton[pixels]" in refusal(file_of(PICTURE))
