"""Rows of a table as fragments, and a run of rows as a Markdown table."""

from __future__ import annotations

import numpy as np

from canopy_backend.fragments.types import Spans
from canopy_backend.items import TableItem


def table_spans(n_rows: int) -> Spans:
    """One span a row, int32 ``[F, 2]``; a table without rows is one empty span."""
    if n_rows == 0:
        return np.zeros((1, 2), np.int32)
    edges = np.arange(n_rows + 1, dtype=np.int32)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def header_lines(item: TableItem) -> str:
    """The header rows and the separator line of a table, one row a line."""
    width = len(item.columns)
    rows = [row_line(row, width) for row in (*item.header_rows, item.columns)]
    return "\n".join([*rows, "|" + " --- |" * width])


def row_line(row: list[str], width: int) -> str:
    """One row as a line of Markdown, padded to ``width`` cells."""
    cells = [" ".join(cell.replace("\\", "\\\\").replace("|", "\\|").split()) for cell in row]
    cells += [""] * (width - len(cells))
    return "| " + " | ".join(cells) + " |"


def render_table(item: TableItem, start: int, end: int) -> str:
    """The header and the rows ``[start, end)``, one row a line."""
    width = len(item.columns)
    return "\n".join([header_lines(item), *(row_line(row, width) for row in item.rows[start:end])])
