"""Files to items: JSON lines, plain text, Markdown, CSV, TSV, WebVTT, SubRip, and images with captions.

Items are read one file at a time, so a large corpus is never in memory. An id is the file's path as it was given and
the item's number in it: reading a file again gives the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.items import Item
from canopy_backend.sources.delimited import read_delimited
from canopy_backend.sources.images import CAPTION_SUFFIX, read_image
from canopy_backend.sources.lines import holds_items, read_lines
from canopy_backend.sources.passages import read_markdown, read_text
from canopy_backend.sources.transcripts import read_transcript

__all__ = ["SUFFIXES", "read_items"]

_log: Final = logging.getLogger(__name__)

_READERS: Final[dict[str, Callable[[Path], Iterator[Item]]]] = {
    ".jsonl": read_lines,
    ".jsonl.gz": read_lines,
    ".txt": read_text,
    ".md": read_markdown,
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".vtt": read_transcript,
    ".srt": read_transcript,
    ".png": read_image,
    ".jpg": read_image,
    ".jpeg": read_image,
    ".webp": read_image,
}

#: File names that can be read, by their end.
SUFFIXES: Final = tuple(_READERS)


def read_items(paths: Iterable[Path]) -> Iterator[Item]:
    """Read the items of files and folders, in the order given.

    A folder is walked in sorted order for files with a known suffix; left out are hidden files and JSON lines of
    another kind than items, such as questions. A file that is named twice is read once.

    Args:
        paths: Files and folders.

    Yields:
        Items with ids that are unique in this call; ``source`` is the file's path as it was given.

    Raises:
        InvalidRequest: A path does not exist or has another suffix.
        InvalidItem: A file is empty, too large, not UTF-8 or malformed; the message names it, and the line where
            there is one.
    """
    seen: set[Path] = set()
    ids: dict[str, Path] = {}
    for path in _files(paths):
        place = path.resolve()
        if place in seen:
            continue
        seen.add(place)
        for item in _READERS[_suffix(path)](path):
            if item.id in ids:
                raise InvalidItem(f"{path} repeats an id of {ids[item.id]}", item_id=item.id, field="id")
            ids[item.id] = path
            yield item


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            found = [inner for inner in sorted(path.rglob("*")) if inner.is_file() and _listed(inner, path)]
            if not found:
                raise InvalidRequest(f"{path}: no file in this folder can be read; known are {', '.join(SUFFIXES)}")
            yield from found
        elif not path.exists():
            raise InvalidRequest(f"{path}: no such file")
        elif not _suffix(path):
            raise InvalidRequest(f"{path}: files of this kind cannot be read; known are {', '.join(SUFFIXES)}")
        else:
            yield path


def _listed(path: Path, folder: Path) -> bool:
    """Whether a file found in a folder is one to read."""
    suffix = _suffix(path)
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    if not suffix or hidden or path.name.lower().endswith(CAPTION_SUFFIX):
        return False
    if _READERS[suffix] is read_lines and not holds_items(path):
        _log.info("%s: its lines are no items; left out", path)
        return False
    return True


def _suffix(path: Path) -> str:
    """The known suffix of a file's name, or an empty string."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
