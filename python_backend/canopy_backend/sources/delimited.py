"""CSV and TSV: a table a file, in parts where it is too long for one item."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

from canopy_backend.errors import InvalidItem
from canopy_backend.items import TableItem
from canopy_backend.limits import Limits
from canopy_backend.sources.files import item_id, read_utf8, title_of

_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
#: Most rows and most bytes of cells in one item: what a server takes by default, with room for JSON's own marks.
_MAX_ROWS: Final = Limits().max_fragments
_MAX_BYTES: Final = Limits().max_item_bytes // 2


def read_delimited(path: Path) -> Iterator[TableItem]:
    """The table of a ``.csv`` or ``.tsv`` file. Its first row is the header; a longer row adds columns without name."""
    rows = _rows(path)
    width = max(map(len, rows))
    columns = rows[0] + [""] * (width - len(rows[0]))
    for ordinal, part in enumerate(_parts(rows[1:])):
        yield TableItem(
            id=item_id(path, ordinal), title=title_of(path), source=path.as_posix(), columns=columns, rows=part
        )


def _rows(path: Path) -> list[list[str]]:
    """Rows with at least one cell that is not blank."""
    reader = csv.reader(StringIO(read_utf8(path), newline=""), delimiter=_DELIMITERS[path.suffix.lower()])
    try:
        rows = [row for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InvalidItem(f"{path}, line {reader.line_num}: {error}") from None
    if not rows:
        raise InvalidItem(f"{path}: the table has no header")
    return rows


def _parts(rows: list[list[str]]) -> Iterator[list[list[str]]]:
    """The rows in runs that fit one item; one empty run where there are none."""
    part: list[list[str]] = []
    size = 0
    for row in rows:
        length = sum(len(cell.encode()) + 4 for cell in row)
        if part and (len(part) == _MAX_ROWS or size + length > _MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    yield part
