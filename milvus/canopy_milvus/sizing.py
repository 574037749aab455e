"""Memory and disk of a corpus, by arithmetic: ``python -m canopy_milvus.sizing --rows 33e6 --dimension 2048``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

_GB = 1e9


@dataclass(frozen=True, slots=True)
class Need:
    """What one way of indexing needs.

    Attributes:
        name: The index.
        memory_bytes: Memory of the query nodes together, one replica, before any headroom.
        note: Where the figure comes from.
    """

    name: str
    memory_bytes: float
    note: str


def index_needs(rows: float, dimension: int) -> list[Need]:
    """Memory of the dense index for ``rows`` vectors of ``dimension`` floats, one entry an index."""
    raw = rows * dimension * 4
    links = rows * 30 * 2 * 4
    return [
        Need("FLAT", raw, "float32 vectors; exact, for up to some 100,000 rows"),
        Need("HNSW", raw + links, "float32 vectors and 2 x 30 links"),
        Need("DISKANN", raw * 0.125 + raw * 0.1, "codes 0.125, cache 0.1; vectors on NVMe"),
        Need("IVF_RABITQ + SQ8", raw / 32 + raw / 4, "one bit a value and one byte to refine (2.6 and later)"),
    ]


def payload_bytes(rows: float, dimension: int, *, nodes: float, item_bytes: float) -> tuple[float, float]:
    """Bytes of all items and of all trees as they are stored (trees in base64); on disk where the server maps fields.

    Args:
        rows: Items.
        dimension: Length of a node's vector, two bytes a value.
        nodes: Nodes of a tree on average; 2F - 1 for F fragments.
        item_bytes: JSON of an item on average.
    """
    tree = 60 + nodes * (dimension * 2 + 16) + (nodes + 1) / 2 * 12
    return rows * item_bytes, rows * tree * 4 / 3


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m canopy_milvus.sizing", description=__doc__)
    parser.add_argument("--rows", type=float, required=True, help="items of the corpus, for instance 33e6")
    parser.add_argument("--dimension", type=int, required=True, help="length of a vector")
    parser.add_argument("--nodes", type=float, default=15, help="nodes of a tree on average (default 15)")
    parser.add_argument("--item-bytes", type=float, default=2000, help="JSON of an item on average (default 2000)")
    options = parser.parse_args(arguments)
    if options.rows < 1 or options.dimension < 1 or options.nodes < 1 or options.item_bytes < 0:
        parser.error("every number has to be positive")
    table = Table(title=f"{options.rows:,.0f} items, {options.dimension} dimensions")
    for heading in ("part", "GB", "of what"):
        table.add_column(heading, justify="right" if heading == "GB" else "left")
    for need in index_needs(options.rows, options.dimension):
        table.add_row(f"index {need.name}", f"{need.memory_bytes / _GB:,.1f}", need.note)
    items, trees = payload_bytes(options.rows, options.dimension, nodes=options.nodes, item_bytes=options.item_bytes)
    table.add_row("items", f"{items / _GB:,.1f}", f"{options.item_bytes:,.0f} bytes each")
    table.add_row("trees", f"{trees / _GB:,.1f}", f"{options.nodes:g} nodes each, float16, base64")
    console = Console()
    console.print(table)
    console.print("Load at most 90 % of a query node's memory; plan 1.3 to 1.5 times for segments, times replicas.")


if __name__ == "__main__":
    main()
