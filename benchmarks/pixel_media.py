"""Pictures and clips that the bench of pixels makes itself: as hard to decode as photographs, the same in every run."""

from __future__ import annotations

from fractions import Fraction
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

UInt8Array = npt.NDArray[np.uint8]

#: Width and height by megapixels.
SIZES: Final = {0.3: (640, 480), 1: (1152, 864), 2: (1632, 1224), 12: (4000, 3000)}
#: How a file is written; speed, not size, matters where it says so.
FORMATS: Final[dict[str, dict[str, Any]]] = {
    "JPEG": {"quality": 92},
    "PNG": {"compress_level": 1},
    "WebP": {"quality": 80, "method": 0},
}


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with shapes of every size and a little noise, about as heavy in a file as a photograph."""
    random = np.random.default_rng(seed)
    small = max(1, width // 4), max(1, height // 4)
    whole = np.full((small[1], small[0], 3), 128, np.float32)
    for cells, weight in ((6, 90.0), (24, 40.0), (96, 20.0), (384, 12.0)):
        coarse = random.uniform(-1, 1, (3, cells * 3 // 4, cells)).astype(np.float32)
        planes = [np.asarray(Image.fromarray(one).resize(small, Image.Resampling.BICUBIC)) for one in coarse]
        whole += weight * np.stack(planes, axis=-1)
    shapes = Image.fromarray(np.clip(whole, 8, 247).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.integers(-9, 10, (height, width, 3), dtype=np.int8)
    return Image.fromarray((np.clip(np.asarray(shapes), 9, 246) + noise).astype(np.uint8))


def picture_file(image: Image.Image, form: str) -> bytes:
    """A picture in one of :data:`FORMATS`."""
    file = BytesIO()
    image.save(file, form, **FORMATS[form])
    return file.getvalue()


def clip_file(seconds: float, *, rate: int, key_every_s: float, size: tuple[int, int] = (1280, 720)) -> bytes:
    """An MP4 file in H.264 whose picture wanders over a larger one.

    Args:
        seconds: Its length.
        rate: Frames a second.
        key_every_s: Seconds between key frames.
        size: Width and height.
    """
    import av

    width, height = size
    margin = 128
    scene = np.asarray(photograph(width + margin, height + margin, 7))
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        options = {"preset": "ultrafast", "sc_threshold": "0"}
        stream: Any = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = max(1, round(rate * key_every_s))
        for place in range(round(seconds * rate)):
            x, y = _wander(place, margin), _wander(2 * place, margin)
            shown = np.ascontiguousarray(scene[y : y + height, x : x + width])
            frame = av.VideoFrame.from_ndarray(shown, format="rgb24")
            frame.pts, frame.time_base = place, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def decode_all(payload: bytes) -> int:
    """Decode every frame of a clip, one after another in one thread; how many there are."""
    import av

    with av.open(BytesIO(payload)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return sum(1 for _ in container.decode(stream))


def _wander(place: int, margin: int) -> int:
    """There and back again."""
    return abs((place + margin) % (2 * margin) - margin)
