"""Flat selectors on the scores that the rule reads too, each with its one knob.

Each reads leaf scores only, but for ``best_node``. A selector gives for each item of a question a mask bool ``[S, F]``:
a row a setting of its knob, true for the fragments that are kept. An item of which nothing is kept is not shown and
costs nothing; of any other the prefix (title, header) is counted too.

- ``top_leaves``, ``leaf_share``: the m best leaves of each item, or a share of its leaves, rounded up;
- ``leaf_threshold``: leaves from a score on, as LangChain's ``EmbeddingsFilter`` does with chunks;
- ``leaf_percentile``: a share of an item's leaves, rounded down, as LlamaIndex's ``SentenceEmbeddingOptimizer`` does;
- ``top_of_question``: the n best leaves of all items of a question, as RECOMP's extractive compressor does;
- ``leaf_threshold_each``, ``top_of_question_each``: these two, which can drop whole items, made to keep the best leaf
  of every item as the rule and the others do;
- ``best_leaf``, ``best_node``: one node of each item, without a knob.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.refinement import refine
from canopy_training.evaluation.metrics import fragments_of
from canopy_training.evaluation.scoring import BoolArray, Float32Array, ScoredItem

Knobs = tuple[float, ...]

Selector = Callable[[Sequence[ScoredItem], Knobs], list[BoolArray]]

#: A knob that keeps everything.
_ALL: Final = 1e9
#: A share of a number of leaves that is whole on paper must not be more or less than that in binary.
_ROUNDING: Final = 1e-9
_COUNTS: Final[Knobs] = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50, 100, 200, 500, _ALL)
_TOTALS: Final[Knobs] = (1, 2, 3, 5, 7, 10, 13, 16, 20, 25, 30, 40, 50, 70, 100, 200, 500, 1000, _ALL)
_SHARES: Final[Knobs] = tuple(round(0.05 * step, 2) for step in range(1, 21))
_SCORES: Final[Knobs] = (*(round(0.9 - 0.025 * step, 3) for step in range(45)), -1.0)


def leaf_scores(item: ScoredItem) -> Float32Array:
    """The score of each fragment's leaf, float32 ``[F]``."""
    leaves = np.flatnonzero(item.hierarchy.is_leaf)
    return item.scores[leaves[np.argsort(item.hierarchy.first[leaves])]]


def ranks(scores: Float32Array) -> npt.NDArray[np.int64]:
    """The place of each score from the best, 0, down; of equal ones the earlier is better."""
    places = np.empty(len(scores), np.int64)
    places[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return places


def top_leaves(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The m best leaves of each item."""
    return [ranks(leaf_scores(item)) < np.array(knobs)[:, None] for item in items]


def leaf_share(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """A share of each item's leaves, rounded up."""
    return [ranks(own) < np.ceil(np.array(knobs) * len(own) - _ROUNDING)[:, None] for own in map(leaf_scores, items)]


def leaf_percentile(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """A share of each item's leaves, rounded down, but one at least: the original refuses an item of which none is."""
    counts = [np.maximum(1, np.floor(np.array(knobs) * item.hierarchy.n_fragments + _ROUNDING)) for item in items]
    return [ranks(leaf_scores(item)) < count[:, None] for item, count in zip(items, counts, strict=True)]


def leaf_threshold(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The leaves that score at least so much."""
    return [leaf_scores(item) >= np.array(knobs, np.float32)[:, None] for item in items]


def top_of_question(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The n best leaves of all items together."""
    scores = [leaf_scores(item) for item in items]
    kept = ranks(np.concatenate(scores)) < np.array(knobs)[:, None]
    return np.split(kept, np.cumsum([len(own) for own in scores])[:-1], axis=1)


def each_item(selector: Selector) -> Selector:
    """The same selector, which also keeps the best leaf of every item, so that no item goes as a whole."""

    def select(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
        return [mask | best for mask, best in zip(selector(items, knobs), best_leaf(items, knobs), strict=True)]

    return select


def best_leaf(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The best leaf of each item."""
    return top_leaves(items, (1,))


def best_node(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The best node of each item, at any level; of equal ones the larger."""
    return [fragments_of(item.hierarchy, [int(item.scores.argmax())])[None] for item in items]


def canopy(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The method's own rule."""
    return [fragments_of(item.hierarchy, refine(item.hierarchy, item.scores))[None] for item in items]


def whole(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """Everything."""
    return [np.ones((1, item.hierarchy.n_fragments), np.bool_) for item in items]


#: Selectors with the settings that they are swept over, from the strictest on.
SWEPT: Final[dict[str, tuple[Selector, Knobs]]] = {
    "top_leaves": (top_leaves, _COUNTS),
    "leaf_share": (leaf_share, _SHARES),
    "leaf_threshold": (leaf_threshold, _SCORES),
    "leaf_percentile": (leaf_percentile, _SHARES),
    "top_of_question": (top_of_question, _TOTALS),
    "leaf_threshold_each": (each_item(leaf_threshold), _SCORES),
    "top_of_question_each": (each_item(top_of_question), _TOTALS),
}
#: Selectors without a knob.
FIXED: Final[dict[str, tuple[Selector, Knobs]]] = {
    "canopy": (canopy, (0,)),
    "whole": (whole, (0,)),
    "best_leaf": (best_leaf, (0,)),
    "best_node": (best_node, (0,)),
}
