"""What every reader needs: a file's bytes within a limit, its text, its items' ids and title."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from canopy_backend.errors import InvalidItem

#: Largest file that is read, after decompression.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
#: Longest id, as :data:`canopy_backend.items.ItemId` has it.
_MAX_ID: Final = 512


def read_bytes(path: Path) -> bytes:
    """A file's bytes, decompressed where its name ends in ``.gz``.

    Raises:
        InvalidItem: The file cannot be read, is empty, or larger than :data:`MAX_FILE_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidItem(f"{path}: {path.stat().st_size} bytes, over the limit of {MAX_FILE_BYTES}")
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                payload = file.read(MAX_FILE_BYTES + 1)
        else:
            payload = path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidItem(f"{path}: cannot be read ({error})") from None
    if len(payload) > MAX_FILE_BYTES:
        raise InvalidItem(f"{path}: more than {MAX_FILE_BYTES} bytes after decompression")
    if not payload.strip():
        raise InvalidItem(f"{path}: the file is empty")
    return payload


def read_utf8(path: Path) -> str:
    """A file's text; a byte order mark is left out, line breaks are kept.

    Raises:
        InvalidItem: As :func:`read_bytes`, or it is not UTF-8, or nothing but a byte order mark and white space.
    """
    payload = read_bytes(path)
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = payload.count(b"\n", 0, error.start) + 1
        raise InvalidItem(f"{path}: not valid UTF-8 at byte {error.start}, line {line}") from None
    if not text.strip():
        raise InvalidItem(f"{path}: the file is empty")
    return text


def companion(place: Path, path: Path) -> Path | None:
    """A file that belongs to another by its name, a caption or a transcript; ``None`` where there is none.

    Args:
        place: Where it would be.
        path: The file that it belongs to.

    Raises:
        InvalidItem: It is a link out of its own folder and that of the other file: whoever laid it there chose what is
            read.
    """
    if not place.is_file():
        return None
    target = place.resolve()
    if not any(target.is_relative_to(one) for one in (place.parent.resolve(), path.resolve().parent)):
        raise InvalidItem(f"{place}: a link that leads out of its folder; put the file itself there")
    return place


def item_id(path: Path, ordinal: int) -> str:
    """Id of the item with this number, from 0, in a file.

    Raises:
        InvalidItem: The path is too long for an id, or its name is not UTF-8.
    """
    found = f"{path.as_posix()}#{ordinal}"
    try:
        found.encode()
    except UnicodeEncodeError:
        raise InvalidItem(f"{str(path)!r}: the path is not UTF-8, and an id has to be") from None
    if len(found) > _MAX_ID:
        raise InvalidItem(f"{path}: the path is too long for an id, which has at most {_MAX_ID} characters")
    return found


def title_of(path: Path) -> str:
    """A title from a file's name: without suffix, dashes and underscores as spaces."""
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split())
