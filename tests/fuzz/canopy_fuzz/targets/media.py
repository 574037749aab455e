"""Picture files and clips: hostile bytes to pixels, with bounds that a small file cannot make dear."""

from __future__ import annotations

from fractions import Fraction
from io import BytesIO
from typing import Any, Final

import numpy as np

from canopy_backend.errors import InvalidItem
from canopy_backend.limits import Limits
from canopy_backend.pixels import PixelBounds, decode_image, read_clip, read_header
from canopy_fuzz.kinds import Target

_BOUNDS: Final = PixelBounds(
    max_pixels=250_000, max_clip_pixels=250_000, max_clip_packets=2000, max_clip_frames=60, max_clip_seconds=10
)


def images(data: bytes) -> None:
    """A picture file: its header tells the size that it has."""
    header = read_header(data, bounds=_BOUNDS)
    pixels = decode_image(data, bounds=_BOUNDS)
    assert pixels.dtype == np.uint8
    assert pixels.flags["C_CONTIGUOUS"]
    assert sorted(pixels.shape[:2]) == sorted((header.width, header.height))
    assert pixels.shape[2] == 3


def clips(data: bytes) -> None:
    """A clip's file: its frames are pictures of one size, in time order and inside of it."""
    clip = read_clip(data, limits=Limits(max_frames=4), bounds=_BOUNDS)
    times = [frame.at_s for frame in clip.frames]
    assert 1 <= len(times) <= 4
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= clip.duration_s
    assert len({read_header(frame.image)[1:] for frame in clip.frames}) == 1


def _pictures() -> list[bytes]:
    from PIL import Image

    rows, columns = np.mgrid[0:8, 0:12]
    colours = Image.fromarray(np.stack([columns * 20, rows * 30, rows * columns], axis=-1).astype(np.uint8))
    made: list[tuple[Any, str, dict[str, Any]]] = [
        (colours, "PNG", {}),
        (colours.convert("P"), "PNG", {"transparency": 0}),
        (colours.convert("L").convert("I;16"), "PNG", {}),
        (colours, "JPEG", {"quality": 50}),
        (colours, "JPEG", {"progressive": True}),
        (colours.convert("CMYK"), "JPEG", {}),
        (colours, "WEBP", {"lossless": True}),
        (colours, "WEBP", {"quality": 30}),
        (colours.convert("RGBA"), "WEBP", {"save_all": True, "append_images": [colours]}),
    ]
    exif = Image.Exif()
    exif[0x0112] = 6
    made.append((colours, "JPEG", {"exif": exif}))
    return [_file(*one) for one in made]


def _file(image: Any, form: str, options: dict[str, Any]) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _clips() -> list[bytes]:
    return [_clip("mp4", "libx264"), _clip("mp4", "mpeg4"), _clip("webm", "libvpx"), _clip("webm", "libvpx-vp9")]


def _clip(form: str, codec: str) -> bytes:
    import av

    file = BytesIO()
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=2)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        stream.codec_context.gop_size = 3
        for place in range(6):
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 3), 40 * place, np.uint8), format="rgb24")
            frame.pts, frame.time_base = place, Fraction(1, 2)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


TARGETS: Final = (
    Target(
        name="images",
        decodes="PNG, JPEG and WebP files",
        run=images,
        allowed=(InvalidItem,),
        seeds=_pictures,
        words=(
            b"\x89PNG\r\n\x1a\n",
            b"IHDR",
            b"IDAT",
            b"tRNS",
            b"\xff\xd8",
            b"\xff\xc0",
            b"\xff\xda",
            b"\xff\xe1",
            b"Exif\0\0",
            b"RIFF",
            b"WEBPVP8X",
            b"ANMF",
            b"\xff\xff\xff\xff",
        ),
        max_len=2048,
        seconds=300,
    ),
    Target(
        name="clips",
        decodes="MP4 and WebM files",
        run=clips,
        allowed=(InvalidItem,),
        seeds=_clips,
        words=(
            b"ftyp",
            b"moov",
            b"mdat",
            b"stts",
            b"stsz",
            b"stco",
            b"elst",
            b"tkhd",
            b"\x1aE\xdf\xa3",
            b"webm",
            b"\xff\xff\xff\xff",
        ),
        max_len=8192,
        seconds=300,
    ),
)
