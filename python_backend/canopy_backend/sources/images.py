"""Images with captions: the caption is read, the image is pointed to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from canopy_backend.errors import InvalidItem
from canopy_backend.items import ImageItem
from canopy_backend.sources.files import MAX_FILE_BYTES, item_id, read_utf8, title_of

#: What the name of a caption's file has in place of the image's suffix.
CAPTION_SUFFIX: Final = ".caption.txt"


def read_image(path: Path) -> Iterator[ImageItem]:
    """The image of a ``.png``, ``.jpg``, ``.jpeg`` or ``.webp`` file with its caption."""
    size = path.stat().st_size
    if not 0 < size <= MAX_FILE_BYTES:
        raise InvalidItem(f"{path}: {size} bytes; an image has 1 to {MAX_FILE_BYTES}")
    caption = path.with_name(path.stem + CAPTION_SUFFIX)
    if not caption.is_file():
        raise InvalidItem(f"{path}: no caption; write one into {caption}", field="caption")
    text = " ".join(read_utf8(caption).split())
    yield ImageItem(
        id=item_id(path, 0), title=title_of(path), source=path.as_posix(), caption=text, uri=path.as_posix()
    )
