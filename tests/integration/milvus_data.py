"""Items, trees and vectors for the tests of Milvus, the same in every process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.tree import Tree, content_hash, encode_tree
from canopy_milvus import Hit, IndexedItem

REVISION = "0123456789abcdef"
OTHER = "fedcba9876543210"
DIMENSION = 16
ODD_IDS = ['q"uo\\te', "new\nline\r\ttab", "judo 柔道", "😀👨‍👩‍👧", "it's {p0}", "\\", "\u2028\x01\x7f", "日" * 512]


def unit(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    vector = rng.standard_normal(DIMENSION).astype(np.float32)
    return vector / np.linalg.norm(vector)


def tree_of(item: Item, revision: str = REVISION) -> bytes:
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    vectors = np.full((hierarchy.size, DIMENSION), 0.25, np.float16)
    tokens = np.ones(len(fragments) + 1, np.int32)
    return encode_tree(Tree(revision, content_hash(item), fragments, hierarchy, vectors, tokens))


def indexed(items: list[Item], seed: int = 0) -> list[IndexedItem]:
    rng = np.random.default_rng(seed)
    return [IndexedItem(item, tree_of(item), unit(rng)) for item in items]


def passages(count: int) -> list[Item]:
    return [
        TextItem(id=f"p{n}", source=f"s{n % 3}", text=f"Passage number {n}. It tells of word{n}.") for n in range(count)
    ]


def mixed() -> list[IndexedItem]:
    items: list[Item] = [
        *passages(12),
        *(TextItem(id=odd, source=odd, text=f"An odd one: {odd}.") for odd in ODD_IDS),
        *(TableItem(id=f"t{n}", columns=["river", "km"], rows=[["Nile", str(n)], ["Elbe"]]) for n in range(4)),
        VideoItem(id="v0", duration_s=70, segments=[Cue(0, 4, "Welcome to the dojo."), Cue(40, 44, "Bow first.")]),
        ImageItem(id="i0", caption="A judoka bows."),
    ]
    return indexed(items)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.item.id for hit in hits]


def exact(rows: list[IndexedItem], query: npt.NDArray[np.float32]) -> list[tuple[str, float]]:
    scored = [(row.item.id, float(row.embedding @ query)) for row in rows]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))
