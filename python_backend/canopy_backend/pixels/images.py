"""One picture file to an RGB array. The bytes decide what a file is, never its name, and its header comes first."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidItem
from canopy_backend.pixels.bounds import BOUNDS, MAX_RATIO, PixelBounds
from canopy_backend.pixels.libraries import pillow

UInt8Array = npt.NDArray[np.uint8]

#: What is read, under the library's names; every other format that it knows stays closed.
FORMATS: Final = ("PNG", "JPEG", "WEBP")
_NAMES: Final = {"MPO": "JPEG"}  # several JPEGs in one file, as phones write them; the first is the picture
#: Pixels that are converted at a time, so that a large picture is in memory twice, not four times.
_STRIP: Final = 1 << 21
_ORIENTATION: Final = 0x0112
_START_OF_SCAN: Final = b"\xff\xda"


class Header(NamedTuple):
    """What a picture's file says of itself.

    Attributes:
        format: ``PNG``, ``JPEG`` or ``WEBP``.
        width: Pixels in a row, as stored: before a photograph is turned upright.
        height: Rows, as stored.
    """

    format: str
    width: int
    height: int


def read_header(
    payload: bytes, *, bounds: PixelBounds = BOUNDS, item_id: str | None = None, field: str | None = "image"
) -> Header:
    """Format and size of a picture file, which may be decoded; its pixels are not touched.

    Args:
        payload: The file.
        bounds: What may be decoded.
        item_id: Named by errors.
        field: Named by errors.

    Raises:
        InvalidItem: It is none of the formats, damaged, over a bound, or Pillow is absent.
    """
    with _opened(payload, bounds, item_id, field) as image:
        return Header(_NAMES.get(image.format, image.format), *image.size)


def decode_image(
    payload: bytes, *, bounds: PixelBounds = BOUNDS, item_id: str | None = None, field: str | None = "image"
) -> UInt8Array:
    """A picture as people see it: upright by its EXIF orientation, what is transparent on white, 8 bits a channel.

    Of an animation, the first picture. CMYK becomes RGB by the plain formula; colour profiles are not applied.

    Args:
        payload: The file: PNG, JPEG or WebP.
        bounds: What may be decoded.
        item_id: Named by errors.
        field: Named by errors.

    Returns:
        uint8 ``[height, width, 3]``, RGB, contiguous, at the file's own resolution.

    Raises:
        InvalidItem: It is none of the formats, damaged or cut short, over a bound, or Pillow is absent.
    """
    library = pillow(item_id, field)
    with _opened(payload, bounds, item_id, field) as image:
        try:
            turned = _orientation(image)
            image.load()
            pixels = _to_rgb(image, library)
        except Exception as error:  # a decoder of hostile bytes may raise anything; the item is at fault
            raise InvalidItem(f"cannot be decoded ({_words(error)})", item_id=item_id, field=field) from None
    return np.ascontiguousarray(_upright(pixels, turned))


def _opened(payload: bytes, bounds: PixelBounds, item_id: str | None, field: str | None) -> Any:
    """The picture, its header read, within bounds."""

    def refuse(reason: str) -> InvalidItem:
        return InvalidItem(reason, item_id=item_id, field=field)

    library = pillow(item_id, field)
    if len(payload) > bounds.max_file_bytes:
        raise refuse(f"{len(payload)} bytes are more than {bounds.max_file_bytes}")
    _check_canvas(payload, bounds, refuse)
    try:
        image = library.open(BytesIO(payload), formats=FORMATS)
    except library.UnidentifiedImageError:
        raise refuse("is no PNG, JPEG or WebP picture that can be read, whatever its name says") from None
    except (library.DecompressionBombError, library.DecompressionBombWarning):
        raise refuse(f"has more than {bounds.max_pixels} pixels") from None
    except Exception as error:  # as in decode_image
        raise refuse(f"cannot be read ({_words(error)})") from None
    try:
        width, height = image.size
        _check_size(width, height, bounds, refuse)
        scans = payload.count(_START_OF_SCAN) if _NAMES.get(image.format, image.format) == "JPEG" else 0
        if scans > bounds.max_scans:
            raise refuse(f"has {scans} scans, more than {bounds.max_scans}")
    except InvalidItem:
        image.close()
        raise
    return image


def _check_canvas(payload: bytes, bounds: PixelBounds, refuse: Any) -> None:
    """The canvas of an extended WebP, for which the library takes memory before its size can be asked."""
    if payload[:4] == b"RIFF" and payload[8:16] == b"WEBPVP8X" and len(payload) >= 30:
        width, height = (1 + int.from_bytes(payload[place : place + 3], "little") for place in (24, 27))
        _check_size(width, height, bounds, refuse)


def _check_size(width: int, height: int, bounds: PixelBounds, refuse: Any) -> None:
    if width < 1 or height < 1:
        raise refuse(f"{width} x {height} pixels are no picture")
    if width * height > bounds.max_pixels:
        raise refuse(f"{width} x {height} pixels are more than {bounds.max_pixels}")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise refuse(f"{width} x {height} pixels: one side is more than {MAX_RATIO} times the other")


def _orientation(image: Any) -> int:
    """How a photograph was held, 1 to 8 as EXIF counts; 1 where that cannot be read."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF is no reason to refuse whole pixels
        return 1
    return found if found in range(1, 9) else 1


def _upright(pixels: UInt8Array, orientation: int) -> UInt8Array:
    """Undo an EXIF orientation: 5 to 8 lie on their side, even ones and 5, 7 are seen in a mirror."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _to_rgb(image: Any, library: Any) -> UInt8Array:
    """A decoded picture as uint8 ``[height, width, 3]``, a strip at a time."""
    width, height = image.size
    rows = max(1, _STRIP // width)
    if rows >= height:
        return _strip(image, library)
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels[top:bottom] = _strip(image.crop((0, top, width, bottom)), library)
    return pixels


def _strip(part: Any, library: Any) -> UInt8Array:
    if part.mode.startswith("I"):  # 16 bits of grey; of 16-bit colours the library keeps the upper 8 as well
        grey = np.clip(np.asarray(part) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if part.has_transparency_data:
        whole = part.convert("RGBA")
        part = library.new("RGB", part.size, "white")
        part.paste(whole, mask=whole)
    return np.asarray(part if part.mode == "RGB" else part.convert("RGB"))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200] if str(error) else type(error).__name__
