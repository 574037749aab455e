"""Files to items: JSON lines, plain text, Markdown, CSV, TSV, WebVTT, SubRip, images with captions, and clips.

Pixels are read where they are asked for only, for encoders that take them; an image then needs no caption and a clip
no transcript. Without them an image is its caption, and a clip's own file cannot be read.

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
from canopy_backend.sources.clips import CLIP_SUFFIXES, TRANSCRIPT_SUFFIXES, has_clip, read_clip_file
from canopy_backend.sources.delimited import read_delimited
from canopy_backend.sources.images import CAPTION_SUFFIX, read_image, read_picture
from canopy_backend.sources.lines import holds_items, read_lines
from canopy_backend.sources.passages import read_markdown, read_text
from canopy_backend.sources.transcripts import read_transcript

__all__ = ["SUFFIXES", "read_items"]

_log: Final = logging.getLogger(__name__)

_Readers = dict[str, Callable[[Path], Iterator[Item]]]

_READERS: Final[_Readers] = {
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

_PIXEL_READERS: Final[_Readers] = {
    **_READERS,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp"), read_picture),
    **dict.fromkeys(CLIP_SUFFIXES, read_clip_file),
}


def read_items(paths: Iterable[Path], *, pixels: bool = False) -> Iterator[Item]:
    """Read the items of files and folders, in the order given.

    A folder is walked in sorted order for files with a known suffix; left out are hidden files, JSON lines of another
    kind than items, such as questions, and links that lead out of the folder: who fills a folder must not choose what
    else of this machine is read. A file that is named twice is read once.

    Args:
        paths: Files and folders.
        pixels: Bring pictures along and read clips; a transcript in a folder then belongs to the clip beside it.

    Yields:
        Items with ids that are unique in this call; ``source`` is the file's path as it was given.

    Raises:
        InvalidRequest: A path does not exist or has another suffix.
        InvalidItem: A file is empty, too large, not UTF-8 or malformed; the message names it, and the line where
            there is one.
    """
    readers = _PIXEL_READERS if pixels else _READERS
    seen: set[Path] = set()
    ids: dict[str, Path] = {}
    for path in _files(paths, readers):
        place = path.resolve()
        if place in seen:
            continue
        seen.add(place)
        for item in readers[_suffix(path, readers)](path):
            if item.id in ids:
                raise InvalidItem(f"{path} repeats an id of {ids[item.id]}", item_id=item.id, field="id")
            ids[item.id] = path
            yield item


def _files(paths: Iterable[Path], readers: _Readers) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            root = path.resolve()
            every = sorted(path.rglob("*"))
            found = [inner for inner in every if inner.is_file() and _listed(inner, path, root, readers)]
            if not found:
                raise InvalidRequest(
                    f"{path}: no file in this folder can be read; known are {', '.join(readers)}, and no link out of it"
                )
            yield from found
        elif not path.exists():
            raise InvalidRequest(f"{path}: no such file")
        elif not path.is_file():
            raise InvalidRequest(f"{path}: no regular file, so it may have no end")
        elif not _suffix(path, readers):
            if path.suffix.lower() in CLIP_SUFFIXES:
                raise InvalidRequest(
                    f"{path}: a clip can be read with its pixels only; give its transcript, or --pixels"
                )
            raise InvalidRequest(f"{path}: files of this kind cannot be read; known are {', '.join(readers)}")
        else:
            yield path


def _listed(path: Path, folder: Path, root: Path, readers: _Readers) -> bool:
    """Whether a file found in a folder is one to read; ``root`` is where the folder really is."""
    suffix = _suffix(path, readers)
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    if not suffix or hidden or path.name.lower().endswith(CAPTION_SUFFIX):
        return False
    if not path.resolve().is_relative_to(root):
        _log.warning("%s: a link that leads out of the folder; left out. Name it to have it read", path)
        return False
    if readers is _PIXEL_READERS and suffix in TRANSCRIPT_SUFFIXES and has_clip(path):
        return False
    if readers[suffix] is read_lines and not holds_items(path):
        _log.info("%s: its lines are no items; left out", path)
        return False
    return True


def _suffix(path: Path, readers: _Readers) -> str:
    """The known suffix of a file's name, or an empty string."""
    name = path.name.lower()
    return next((suffix for suffix in readers if name.endswith(suffix)), "")
