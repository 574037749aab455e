"""JSON lines, plain or compressed: one item a line."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from canopy_backend.errors import InvalidItem
from canopy_backend.items import Item, decode_item
from canopy_backend.sources.files import read_bytes


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
