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
#: Most rows of one item, and most bytes of their nodes, for which each row counts with the header that goes with it:
#: what a server takes by default. A token row holds the nodes over 95 bytes and more, even of cells that are numbers.
_MAX_ROWS: Final = Limits().max_fragments
_MAX_BYTES: Final = Limits().max_rows * 88
#: Bytes of a cell's marks: a bar and spaces; below the header, its dashes too.
_MARKS: Final = 4
_DASHES: Final = 6


def read_delimited(path: Path) -> Iterator[TableItem]:
    """The table of a ``.csv`` or ``.tsv`` file. Its first row is the header; a longer row adds columns without name."""
    rows = _rows(path)
    width = max(map(len, rows))
    columns = rows[0] + [""] * (width - len(rows[0]))
    header = _size(columns) + _DASHES * width
    for ordinal, part in enumerate(_parts(rows[1:], header)):
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


def _size(row: list[str]) -> int:
    return sum(len(cell.encode()) + _MARKS for cell in row)


def _parts(rows: list[list[str]], header: int) -> Iterator[list[list[str]]]:
    """The rows in runs that fit one item with a header of so many bytes; one empty run where there are none."""
    part: list[list[str]] = []
    size = 0
    for row in rows:
        length = header + _size(row)
        if part and (len(part) == _MAX_ROWS or size + length > _MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    yield part
