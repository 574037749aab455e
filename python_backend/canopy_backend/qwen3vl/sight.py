"""Items with pixels to vectors: the vision tower first, then the encoders that read what it saw, in bounded calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import unit
from canopy_backend.fragments import Fragments
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item
from canopy_backend.packing import row_width, runs
from canopy_backend.pixels import BOUNDS, PixelBounds
from canopy_backend.qwen3vl.chat import ChatSequence
from canopy_backend.qwen3vl.nodes import ContentPlan, plan_content
from canopy_backend.qwen3vl.serving import seen_rows
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.qwen3vl.tower import Run, Tower
from canopy_backend.tokenization import EncoderTokenizer

#: Most tokens of one call of an encoder.
MAX_TOKENS: Final = 8192

FloatArray: TypeAlias = npt.NDArray[np.float32]
Int32Array: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class SeenItem:
    """What encoding an item with pixels gave.

    Attributes:
        nodes: int32 ``[P]``, ascending, the node of each vector.
        weights: int32 ``[P]``, tokens of each.
        vectors: float32 ``[P, D]``, the node encoder's.
        whole: float32 ``[D]``, the retrieval encoder's vector of the whole item; ``None`` where it was not wanted.
    """

    nodes: Int32Array
    weights: Int32Array
    vectors: FloatArray
    whole: FloatArray | None


@dataclass(frozen=True, slots=True)
class Sight:
    """An encoder that sees pixels, behind whatever runs its graphs.

    Attributes:
        tokenizer: The node encoder's.
        settings: The model's.
        vision: The vision tower: ``visual`` and ``deepstack``.
        node: The node graph: ``embeddings``.
        query: The query graph, which encodes whole items for retrieval: ``embedding``; ``None`` where they are not
            wanted.
        rows: Most rows of a call of an encoder.
        bounds: What is decoded at most.
    """

    tokenizer: EncoderTokenizer
    settings: VisionSettings
    vision: Run
    node: Run
    query: Run | None = None
    rows: int = MAX_TOKENS
    bounds: PixelBounds = BOUNDS

    def plan(self, item: Item, fragments: Fragments, hierarchy: Hierarchy) -> ContentPlan:
        """What has to be encoded for an item, see :func:`plan_content`; its pictures are decoded here."""
        return plan_content(item, fragments, hierarchy, self.tokenizer, self.settings, self.bounds)

    def encode(self, plan: ContentPlan, hierarchy: Hierarchy) -> SeenItem:
        """Vectors of an item's sequences.

        Args:
            plan: Of the item.
            hierarchy: Its nodes.
        """
        covering = _cover(hierarchy, plan.nodes)
        tower = Tower(self.vision, self.settings, plan.looks)
        vectors: list[FloatArray] = []
        whole: list[FloatArray] = []
        share = -(-MAX_TOKENS // self.rows)  # of a call's tokens, as no sequence takes more than a row
        sizes = [max(share, row_width(len(sequence.ids))) for sequence in plan.sequences]
        for first, last in runs(sizes, MAX_TOKENS):
            sequences = plan.sequences[first:last]
            features = tower.features(plan.looks[first:last])
            rows = seen_rows(sequences, features, packed=True)
            answer = self.node(rows.node_inputs())[0]
            vectors.append(np.asarray(answer[rows.slots[:, 0], rows.slots[:, 1]], np.float32))
            if self.query is not None:
                wanted = np.flatnonzero(covering[first:last]).tolist()
                whole += self._whole([sequences[place] for place in wanted], [features[place] for place in wanted])
        mean: FloatArray | None = None
        if self.query is not None:
            parts = np.concatenate(whole) * plan.weights[covering][:, None].astype(np.float32)
            mean = unit(parts.sum(axis=0, keepdims=True))[0] if len(parts) > 1 else np.concatenate(whole)[0]
        return SeenItem(plan.nodes, plan.weights, np.concatenate(vectors), mean)

    def _whole(self, sequences: list[ChatSequence], features: list[FloatArray]) -> list[FloatArray]:
        if not sequences or self.query is None:
            return []
        rows = seen_rows(sequences, features, packed=False)
        return [np.asarray(self.query(rows.query_inputs())[0], np.float32)]


def patches_of(plan: ContentPlan) -> int:
    """Patches that a plan's sequences have together: four times the visual tokens that encoders read."""
    return sum(frames * height * width for frames, height, width in plan.grids)


def _cover(hierarchy: Hierarchy, nodes: Int32Array) -> npt.NDArray[np.bool_]:
    """Which of the parts are of the topmost nodes that have any: together they hold the whole item once."""
    given = np.zeros(hierarchy.size, np.bool_)
    given[nodes] = True
    below = np.zeros(hierarchy.size, np.bool_)
    for node in range(1, hierarchy.size):  # breadth-first, so a parent is known before its children
        parent = hierarchy.parent[node]
        below[node] = below[parent] or given[parent]
    return np.asarray(~below[nodes], np.bool_)
