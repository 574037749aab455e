"""What quicker ways to a smaller picture would save, and what they would change in what the encoder sees."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks import estimate, pixel_media
from benchmarks.timing import cpu_ms
from canopy_backend.pixels import decode_image
from canopy_backend.qwen3vl.patches import image_size, resized

UInt8Array = npt.NDArray[np.uint8]

_MEGAPIXELS: Final = 12
#: What ``reducing_gap`` would do too, from four times the size on.
_REDUCED: Final = 2
AS_SERVED: Final = "as it is: decoded whole, resized"


class Shortcut(msgspec.Struct, frozen=True, kw_only=True):
    """One way from a file to the pixels that are cut into patches.

    Attributes:
        label: In words.
        ms: Processor time of one core.
        changed: Share of the numbers that differ from those of the way that is served.
        mean: Their mean difference in levels of 255.
        most: The largest.
    """

    label: str
    ms: float
    changed: float
    mean: float
    most: int


def shortcuts(repeats: int) -> list[Shortcut]:
    """Of one large JPEG."""
    payload = pixel_media.picture_file(pixel_media.photograph(*pixel_media.SIZES[_MEGAPIXELS]), "JPEG")
    width, height = pixel_media.SIZES[_MEGAPIXELS]
    tall, wide = image_size(height, width, estimate.SETTINGS)

    def served() -> UInt8Array:
        return resized(decode_image(payload), (tall, wide))

    def reduced() -> UInt8Array:
        whole = Image.fromarray(decode_image(payload)).reduce(_REDUCED)
        return np.asarray(whole.resize((wide, tall), Image.Resampling.BICUBIC))

    def draft() -> UInt8Array:
        with Image.open(BytesIO(payload)) as image:
            image.draft("RGB", (wide, tall))
            return np.asarray(image.resize((wide, tall), Image.Resampling.BICUBIC))

    ways: dict[str, Callable[[], UInt8Array]] = {
        AS_SERVED: served,
        "`reduce(2)` before `resize`": reduced,
        "`draft`: the decoder leaves out what is finer": draft,
    }
    expected = served().astype(np.int16)
    return [_shortcut(label, way, expected, repeats) for label, way in ways.items()]


def _shortcut(label: str, way: Callable[[], UInt8Array], expected: npt.NDArray[np.int16], repeats: int) -> Shortcut:
    apart = np.abs(way().astype(np.int16) - expected)
    return Shortcut(
        label=label,
        ms=cpu_ms(way, repeats),
        changed=float((apart > 0).mean()),
        mean=float(apart.mean()),
        most=int(apart.max()),
    )
