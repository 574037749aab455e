"""Images with captions: the caption is read, the image is pointed to, and brought along where pixels are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from canopy_backend.errors import InvalidItem
from canopy_backend.items import ImageItem
from canopy_backend.sources.files import MAX_FILE_BYTES, companion, item_id, read_bytes, read_utf8, title_of

#: What the name of a caption's file has in place of the image's suffix.
CAPTION_SUFFIX: Final = ".caption.txt"


def read_image(path: Path) -> Iterator[ImageItem]:
    """The image of a ``.png``, ``.jpg``, ``.jpeg`` or ``.webp`` file with its caption, which must be there."""
    size = path.stat().st_size
    if not 0 < size <= MAX_FILE_BYTES:
        raise InvalidItem(f"{path}: {size} bytes; an image has 1 to {MAX_FILE_BYTES}")
    caption = _caption(path)
    if caption is None:
        place = path.with_name(path.stem + CAPTION_SUFFIX)
        raise InvalidItem(f"{path}: no caption; write one into {place}", field="caption")
    yield _item(path, caption)


def read_picture(path: Path) -> Iterator[ImageItem]:
    """The same with its pixels; where there is no caption, they speak for themselves."""
    from canopy_backend.pixels import with_picture  # Pillow is needed from here on.

    yield with_picture(_item(path, _caption(path) or ""), read_bytes(path))


def _item(path: Path, caption: str) -> ImageItem:
    return ImageItem(
        id=item_id(path, 0), title=title_of(path), source=path.as_posix(), caption=caption, uri=path.as_posix()
    )


def _caption(path: Path) -> str | None:
    """The caption beside an image, in one line; ``None`` without one."""
    place = path.with_name(path.stem + CAPTION_SUFFIX)
    found = companion(place, path)
    return None if found is None else " ".join(read_utf8(found).split())
