"""Rows of a table as fragments, and rows as lines of a Markdown table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from canopy_backend.fragments.types import Spans
from canopy_backend.items import TableItem

_BREAK: Final = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")

#: What stands in a cell of the row that shows a gap.
GAP: Final = "…"


def table_spans(n_rows: int) -> Spans:
    """One span a row, int32 ``[F, 2]``; a table without rows is one empty span."""
    if n_rows == 0:
        return np.zeros((1, 2), np.int32)
    edges = np.arange(n_rows + 1, dtype=np.int32)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def header_lines(item: TableItem) -> str:
    """The header rows, ``columns`` last, and the separator below them, one row a line."""
    width = len(item.columns)
    rows = [row_line(row, width) for row in (*item.header_rows, item.columns)]
    return "\n".join([*rows, "|" + " --- |" * width])


def row_line(row: Sequence[str], width: int) -> str:
    """One row as a line of Markdown, padded to ``width`` cells; bars and line breaks in a cell are escaped."""
    row = row or [""]
    line = " | ".join(row)
    if line.count("|") >= len(row) or not line.isprintable():
        line = " | ".join([_BREAK.sub("<br>", cell.strip()).replace("|", "\\|") for cell in row])
    return f"| {line}{' | ' * (width - len(row))} |" if len(row) < width else f"| {line} |"


def gap_line(width: int) -> str:
    """The row that stands for rows left out."""
    return row_line([GAP] * width, width)


def table_renderer(item: TableItem) -> Callable[[int, int], str]:
    """A function of two rows that gives the header and the rows ``[start, end)``, one row a line."""
    width = len(item.columns)
    header = header_lines(item)
    rows = item.rows

    def render(start: int, end: int) -> str:
        return "\n".join([header, *[row_line(row, width) for row in rows[start:end]]])

    return render
