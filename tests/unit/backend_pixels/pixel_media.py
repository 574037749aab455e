"""Pictures and clips that the tests make themselves, small enough to be made again each time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    """A picture without any symmetry."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (columns * 255 // max(1, width - 1), rows * 255 // max(1, height - 1), (rows + columns) % 256)
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def grey_at(seconds: float) -> int:
    """The grey of a clip's picture at a time, so that a decoded frame tells when it was shown."""
    return 20 + int(seconds * 2) % 220


@cache
def clip(
    seconds: float = 65,
    *,
    form: str = "mp4",
    codec: str = "libx264",
    rate: int = 5,
    key_every: int = 25,
    size: tuple[int, int] = (64, 48),
    options: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """A clip with a constant frame rate and a key frame every so many frames."""
    times = [place / rate for place in range(max(1, round(seconds * rate)))]
    return clip_at(times, form=form, codec=codec, rate=rate, key_every=key_every, size=size, options=options)


def clip_at(
    times: Sequence[float],
    *,
    form: str = "mp4",
    codec: str = "libx264",
    rate: int = 5,
    key_every: int = 25,
    size: tuple[int, int] = (64, 48),
    options: Sequence[tuple[str, str]] = (),
) -> bytes:
    """A clip with frames at these times."""
    import av

    fast = {
        "libx264": {"preset": "ultrafast", "sc_threshold": "0", "bf": "2"},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    }
    file = BytesIO()
    with av.open(file, "w", format=form, options=dict(options)) as container:
        stream: Any = container.add_stream(codec, rate=rate, options=fast.get(codec, {}))
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = key_every
        stream.codec_context.time_base = Fraction(1, 1000)
        for at in times:
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), grey_at(at), np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(at * 1000), Fraction(1, 1000)
            frame.duration = 1000 // rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@cache
def light_above() -> bytes:
    """An MP4 file with one frame, light above and dark below."""
    import av

    picture = np.zeros((64, 64, 3), np.uint8)
    picture[:32] = 255
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=5)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


@cache
def sound(seconds: float = 1, picture_from: float | None = None) -> bytes:
    """An MP4 file with sound, and with pictures from a later time on where that is given."""
    import av

    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        heard: Any = container.add_stream("aac", rate=8000)
        seen: Any = None
        if picture_from is not None:
            seen = container.add_stream("mpeg4", rate=5)
            seen.width, seen.height, seen.pix_fmt = 64, 48, "yuv420p"
        for place in range(round(seconds * 8000 / 1024)):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, place * 1024
            container.mux(heard.encode(frame))
        for place in range(round((picture_from or 0) * 5), round(seconds * 5) if seen else 0):
            grey = np.full((48, 64, 3), grey_at(place / 5), np.uint8)
            picture = av.VideoFrame.from_ndarray(grey, format="rgb24")
            picture.pts = place
            container.mux(seen.encode(picture))
        for stream in filter(None, (heard, seen)):
            container.mux(stream.encode(None))
    return file.getvalue()


_UPRIGHT = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


def turned(payload: bytes, a: int, b: int, c: int, d: int) -> bytes:
    """An MP4 file whose track header says that its pictures lie: the matrix that a phone writes."""
    place = payload.index(_UPRIGHT, payload.index(b"tkhd"))
    matrix = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 0x40000000)
    return payload[:place] + matrix + payload[place + len(matrix) :]


def timeless(payload: bytes) -> bytes:
    """An MP4 file whose frames all take no time, and whose headers say so."""
    for name, place in ((b"stts", 12), (b"mvhd", 20), (b"mdhd", 20), (b"tkhd", 24)):
        at = payload.index(name) + place
        payload = payload[:at] + bytes(4) + payload[at + 4 :]
    return payload


def damaged(payload: bytes, edits: Sequence[tuple[int, int, int]]) -> bytes:
    """A file with bytes changed, cut out or repeated: place, kind and value of each edit."""
    content = bytearray(payload)
    for place, kind, value in edits:
        place %= len(content) or 1
        if kind == 0:
            content[place : place + 1] = bytes([value])
        elif kind == 1:
            content[place : place + 4] = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff")[value % 3]
        elif kind == 2:
            del content[place : place + value]
        else:
            content[place:place] = content[max(0, place - value) : place]
    return bytes(content)
