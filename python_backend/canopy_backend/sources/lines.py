"""JSON lines, plain or compressed: one item a line."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import InvalidItem
from canopy_backend.items import Item, decode_item
from canopy_backend.reading import UNREADABLE
from canopy_backend.sources.files import read_bytes

#: Fields by one of which every item is known, also one that is malformed.
_ITEM_FIELDS: Final = ("modality", "text", "columns", "rows", "segments", "duration_s", "caption")


def read_lines(path: Path) -> Iterator[Item]:
    """The items of a ``.jsonl`` or ``.jsonl.gz`` file; blank lines are skipped, ids are the items' own."""
    payload = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(BytesIO(payload), start=1):
        if not line.strip():
            continue
        try:
            item = decode_item(line)
        except InvalidItem as error:
            reason = f"{path}, line {number}: {error.reason}"
            raise InvalidItem(reason, item_id=error.item_id, field=error.field) from None
        if not item.source:
            item.source = path.as_posix()
        yield item


def holds_items(path: Path) -> bool:
    """Whether the first line of a file is an item, good or bad, or cannot be told; records of another kind are not."""
    try:
        lines = BytesIO(read_bytes(path).removeprefix(b"\xef\xbb\xbf"))
        # Nothing but a byte order mark and line ends is no item either; whoever reads it gets none.
        first = msgspec.json.decode(next((line for line in lines if line.strip()), b"{}"))
    except (InvalidItem, *UNREADABLE):
        return True
    return not isinstance(first, dict) or any(name in first for name in _ITEM_FIELDS)
