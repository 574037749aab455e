"""Items as evidence without compression: each whole, as one region, and no server is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidItem
from canopy_backend.evidence import Evidence, assemble, decisions
from canopy_backend.fragments import Fragments, fragment
from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.items import Item
from canopy_backend.templates import item_text
from canopy_backend.tree import decode_tree, revision_of

#: Reader tokens of each text.
Count: TypeAlias = Callable[[Sequence[str]], Sequence[int]]


def whole(item: Item, score: float, count: Count, *, trace: bool = False) -> Evidence:
    """The evidence of an item that is kept as it is.

    Args:
        item: The item. Where it brings its tree, fragments and token counts are read off it.
        score: What stands as the region's score: how well the search found the item.
        count: Reader tokens of texts, for an item without a tree.
        trace: List the root as the one visited node.

    Raises:
        InvalidItem: The item cannot be cut into fragments.
    """
    fragments, hierarchy, tokens = _measured(item, count)
    scores = np.full(hierarchy.size, score, np.float32)
    root = np.zeros(1, np.int32)
    evidence = assemble(item, fragments, hierarchy, root, scores, tokens)
    return msgspec.structs.replace(evidence, trace=decisions(hierarchy, scores, root)) if trace else evidence


def _measured(item: Item, count: Count) -> tuple[Fragments, Hierarchy, npt.NDArray[np.int32]]:
    """Fragments, nodes and reader tokens ``[F + 1]``, of which only the sum matters here."""
    if item.tree:
        try:
            tree = decode_tree(item.tree, item=item, revision=revision_of(item.tree))
        except (InvalidItem, ValueError):
            pass  # A tree that cannot be read costs its counts, and nothing else of a whole item.
        else:
            return tree.fragments, tree.hierarchy, tree.tokens
    fragments = fragment(item)
    tokens = np.zeros(len(fragments) + 1, np.int32)
    tokens[-1] = count([item_text(item)])[0]
    return fragments, balanced(len(fragments)), tokens
