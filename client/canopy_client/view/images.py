"""Pictures of image items, put into the page: a page from a file could not load them, and may load nothing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import InvalidRequest
from canopy_backend.items import ImageItem
from canopy_client.trace import TraceFile

#: Largest picture, and largest sum of them, in bytes of their files.
MAX_BYTES: Final = 2 * 1024 * 1024
MAX_TOTAL_BYTES: Final = 16 * 1024 * 1024

#: How files begin that a browser draws and that can hold no script.
_KINDS: Final = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"))


def pictures(content: TraceFile, folder: Path) -> dict[str, str]:
    """Pictures of a trace's image items, by the items' ``uri``.

    Only files under the folder are read, and only PNG, JPEG, GIF and WebP are taken: a trace may come from anywhere,
    and what it names is not for it to choose. What is missing, too large or something else is left out.

    Args:
        content: The trace.
        folder: What the items' ``uri`` starts from.

    Returns:
        ``data:`` addresses.

    Raises:
        InvalidRequest: There is no such folder.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise InvalidRequest(f"--images: {folder} is not a folder")
    found: dict[str, str] = {}
    total = 0
    for uri in dict.fromkeys(_addresses(content)):
        payload = _read(root, uri)
        kind = _kind(payload)
        if kind and total + len(payload) <= MAX_TOTAL_BYTES:
            total += len(payload)
            found[uri] = f"data:image/{kind};base64,{base64.b64encode(payload).decode()}"
    return found


def _addresses(content: TraceFile) -> list[str]:
    originals = (one.original for answer in content.answers for one in answer.evidence)
    items = [one.item for one in originals if not isinstance(one, msgspec.UnsetType)]
    return [item.uri for item in items if isinstance(item, ImageItem) and item.uri]


def _read(root: Path, uri: str) -> bytes:
    """The file's bytes; empty where it is not a file under the root, or too large."""
    try:
        path = (root / uri).resolve()
        if path.is_relative_to(root) and path.is_file() and path.stat().st_size <= MAX_BYTES:
            return path.read_bytes()
    except (OSError, ValueError):
        # A name that no file can have: too long, or with a null character.
        return b""
    return b""


def _kind(payload: bytes) -> str | None:
    if payload[:4] == b"RIFF" and payload[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in _KINDS if payload.startswith(start)), None)
