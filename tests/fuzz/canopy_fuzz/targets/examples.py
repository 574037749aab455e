"""Items, trees and evidence that several targets begin with."""

from __future__ import annotations

from typing import Final

import numpy as np

from canopy_backend.evidence import Evidence, assemble, decisions
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, Frame, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.refinement import refine
from canopy_backend.tree import Tree, content_hash, encode_tree

REVISION: Final = "00112233445566ff"
DIMENSION: Final = 4

ITEMS: Final[tuple[Item, ...]] = (
    TextItem(id="t", title="Weir", text="The weir holds. It was built in 1931! Who built it? Nobody knows."),
    TableItem(
        id="r",
        columns=["gate", "state"],
        header_rows=[["north", ""]],
        rows=[["1", "open"], ["2"], ["3", "a|b\nc"]],
        caption="Gates",
    ),
    VideoItem(id="v", duration_s=95, segments=[Cue(0, 12, "Good morning."), Cue(62, 80.5, "The gate.")], uri="a.mp4"),
    ImageItem(id="i", title="Flag", caption="Two halves.", uri="flag.png"),
    VideoItem(id="f", duration_s=20, frames=[Frame(0.0, b"\x89PNG"), Frame(10.0, b"\xff\xd8\xff")]),
    TextItem(id="e", text=""),
)


def tree_of(item: Item) -> Tree:
    """A tree with vectors that are the same each time."""
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    vectors = np.random.default_rng(0).normal(size=(hierarchy.size, DIMENSION)).astype(np.float16)
    tokens = np.arange(len(fragments) + 1, dtype=np.int32)
    return Tree(REVISION, content_hash(item), fragments, hierarchy, vectors, tokens, b"reader01")


def blob_of(item: Item) -> bytes:
    """Its bytes."""
    return encode_tree(tree_of(item))


def evidence_of(item: Item) -> Evidence:
    """What a refinement keeps of an item, with its trace."""
    tree = tree_of(item)
    scores = (tree.vectors.astype(np.float32) @ np.ones(DIMENSION, np.float32)).astype(np.float32)
    kept = refine(tree.hierarchy, scores)
    found = assemble(item, tree.fragments, tree.hierarchy, kept, scores, tree.tokens)
    fields = {name: getattr(found, name) for name in found.__struct_fields__ if name != "trace"}
    return Evidence(**fields, trace=decisions(tree.hierarchy, scores, kept))
