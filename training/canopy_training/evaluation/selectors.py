"""Flat selectors on the same scores, each with its one knob swept, and what they cost at equal recall.

Each reads leaf scores only, but for ``best_node``. A selector gives for each item of a question a mask bool ``[S, F]``:
a row a setting of its knob, true for the fragments that are kept. An item of which nothing is kept is not shown and
costs nothing; of any other the prefix (title, header) is counted too.

- ``top_leaves``, ``leaf_share``: the m best leaves of each item, or a share of its leaves, rounded up;
- ``leaf_threshold``: leaves from a score on, as LangChain's ``EmbeddingsFilter`` does with chunks;
- ``leaf_percentile``: a share of an item's leaves, rounded down, as LlamaIndex's ``SentenceEmbeddingOptimizer`` does;
- ``top_of_question``: the n best leaves of all items of a question, as RECOMP's extractive compressor does;
- ``best_leaf``, ``best_node``: one node of each item, without a knob.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.refinement import refine
from canopy_training.evaluation.bootstrap import RESAMPLES, Estimate, estimates, resample
from canopy_training.evaluation.metrics import fragments_of
from canopy_training.evaluation.scoring import BoolArray, Float32Array, ScoredItem, ScoredQuestion

Float64Array = npt.NDArray[np.float64]
Knobs = tuple[float, ...]

#: A knob that keeps everything.
_ALL: Final = 1e9
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
    return [ranks(own) < np.ceil(np.array(knobs) * len(own))[:, None] for own in map(leaf_scores, items)]


def leaf_percentile(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """A share of each item's leaves, rounded down, but one at least: the original refuses an item of which none is."""
    counts = [np.maximum(1, np.floor(np.array(knobs) * item.hierarchy.n_fragments)) for item in items]
    return [ranks(leaf_scores(item)) < count[:, None] for item, count in zip(items, counts, strict=True)]


def leaf_threshold(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The leaves that score at least so much."""
    return [leaf_scores(item) >= np.array(knobs, np.float32)[:, None] for item in items]


def top_of_question(items: Sequence[ScoredItem], knobs: Knobs) -> list[BoolArray]:
    """The n best leaves of all items together."""
    scores = [leaf_scores(item) for item in items]
    kept = ranks(np.concatenate(scores)) < np.array(knobs)[:, None]
    return np.split(kept, np.cumsum([len(own) for own in scores])[:-1], axis=1)


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


Selector = Callable[[Sequence[ScoredItem], Knobs], list[BoolArray]]

#: Selectors with the settings that they are swept over, from the strictest on.
SWEPT: Final[dict[str, tuple[Selector, Knobs]]] = {
    "top_leaves": (top_leaves, _COUNTS),
    "leaf_share": (leaf_share, _SHARES),
    "leaf_threshold": (leaf_threshold, _SCORES),
    "leaf_percentile": (leaf_percentile, _SHARES),
    "top_of_question": (top_of_question, _TOTALS),
}
#: Selectors without a knob.
FIXED: Final[dict[str, tuple[Selector, Knobs]]] = {
    "canopy": (canopy, (0,)),
    "whole": (whole, (0,)),
    "best_leaf": (best_leaf, (0,)),
    "best_node": (best_node, (0,)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """What a selector keeps of each question at each setting.

    Attributes:
        knobs: The S settings.
        tokens: float64 ``[Q, S]``, kept tokens.
        recall: float64 ``[Q, S]``, share of gold fragments left in splittable items; 0 without such items.
        counted: float64 ``[Q]``, 1 for questions that have such items, else 0.
    """

    knobs: Knobs
    tokens: Float64Array
    recall: Float64Array
    counted: Float64Array

    def where(self, questions: BoolArray) -> Sweep:
        """Some of the questions."""
        return Sweep(self.knobs, self.tokens[questions], self.recall[questions], self.counted[questions])

    def points(self) -> tuple[Float64Array, Float64Array]:
        """Mean tokens and mean recall at each setting, float64 ``[S]`` each."""
        return self.tokens.mean(axis=0), self.recall.sum(axis=0) / max(1.0, self.counted.sum())

    def samples(self, resamples: int, seed: int) -> tuple[Float64Array, Float64Array]:
        """The same of each resample of the questions, float64 ``[B, S]`` each; equal seeds give equal draws."""
        over = np.concatenate([self.tokens, self.recall], axis=1)
        ones = np.ones_like(self.tokens)
        under = np.concatenate([ones, ones * self.counted[:, None]], axis=1)
        _, drawn = resample(over, under, resamples=resamples, seed=seed)
        return drawn[:, : len(self.knobs)], drawn[:, len(self.knobs) :]


def run_sweep(questions: Sequence[ScoredQuestion], selector: Selector, knobs: Knobs) -> Sweep:
    """Run a selector over all questions."""
    rows = [_row(question.items, selector(question.items, knobs)) for question in questions]
    tokens, recall, counted = zip(*rows, strict=True)
    return Sweep(knobs, np.array(tokens, np.float64), np.array(recall, np.float64), np.array(counted, np.float64))


def _row(items: Sequence[ScoredItem], masks: Sequence[BoolArray]) -> tuple[Float64Array, Float64Array, float]:
    """Tokens and recall of one question at each setting, and whether it counts for recall."""
    tokens = sum(mask @ item.tokens[:-1] + mask.any(axis=1) * item.tokens[-1] for item, mask in zip(items, masks, strict=True))
    splittable = [
        (item.gold, mask)
        for item, mask in zip(items, masks, strict=True)
        if item.gold is not None and item.hierarchy.size > 1
    ]
    total = sum(int(gold.sum()) for gold, _ in splittable)
    left = sum((mask @ gold.astype(np.int64) for gold, mask in splittable), np.zeros(len(masks[0]), np.int64))
    return np.asarray(tokens, np.float64), left / max(1, total), float(total > 0)


def tokens_at_recall(tokens: Float64Array, recalls: Float64Array, recall: float) -> float:
    """Tokens that a sweep needs for a recall, by linear interpolation between its settings.

    Args:
        tokens: float64 ``[S]``, of the settings from the strictest on.
        recalls: float64 ``[S]`` of the same, never falling.
        recall: What has to be reached.

    Returns:
        NaN for a recall that the sweep does not reach; the tokens of its strictest setting for a lower one.
    """
    above = np.flatnonzero(recalls >= recall)
    if not len(above):
        return float("nan")
    at = int(above[0])
    if at == 0 or recalls[at] == recall:
        return float(tokens[at])
    share = (recall - recalls[at - 1]) / (recalls[at] - recalls[at - 1])
    return float(tokens[at - 1] + share * (tokens[at] - tokens[at - 1]))


def recall_at_tokens(tokens: Float64Array, recalls: Float64Array, budget: float) -> float:
    """Recall that a sweep reaches with a number of tokens, by linear interpolation; arguments as above.

    Returns:
        NaN for fewer tokens than its strictest setting takes; the recall of its mildest setting for more than that.
    """
    if budget < tokens[0]:
        return float("nan")
    return float(np.interp(budget, tokens, recalls))


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A selector's points on one part of the pool, and how it stands against the method's rule.

    Attributes:
        scope: The part.
        system: The encoder whose scores it reads.
        selector: The selector.
        knobs: Its settings.
        tokens: Mean kept tokens a question at each.
        recalls: Mean recall at each.
        tokens_at_equal_recall: Tokens that it needs for the recall that the rule reaches with the compared scores.
        saved: That number less the rule's own tokens, paired: more than 0 where the rule needs fewer.
        recall_at_equal_tokens: Recall that it reaches with the rule's tokens.
    """

    scope: str
    system: str
    selector: str
    knobs: list[float]
    tokens: list[float]
    recalls: list[float]
    tokens_at_equal_recall: Estimate
    saved: Estimate
    recall_at_equal_tokens: Estimate


def compare(
    sweep: Sweep,
    rule: Sweep,
    *,
    scope: str,
    system: str,
    selector: str,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> SweepReport:
    """A sweep beside the rule's one point, with paired intervals.

    Args:
        sweep: The selector's.
        rule: The rule's, on the same questions.
        scope: For the report, as are ``system`` and ``selector``.
        system: The encoder.
        selector: The selector.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
    """
    tokens, recalls = sweep.points()
    (own_tokens,), (own_recall,) = rule.points()
    drawn = zip(*sweep.samples(resamples, seed), *(part[:, 0] for part in rule.samples(resamples, seed)), strict=True)
    value = _equal(tokens, recalls, own_tokens, own_recall)
    samples = np.array([_equal(*one) for one in drawn]).reshape(-1, 3)
    equal, saved, reached = estimates(np.array(value), samples)
    return SweepReport(
        scope=scope,
        system=system,
        selector=selector,
        knobs=list(sweep.knobs),
        tokens=tokens.tolist(),
        recalls=recalls.tolist(),
        tokens_at_equal_recall=equal,
        saved=saved,
        recall_at_equal_tokens=reached,
    )


def _equal(tokens: Float64Array, recalls: Float64Array, own_tokens: float, own_recall: float) -> tuple[float, ...]:
    needed = tokens_at_recall(tokens, recalls, own_recall)
    return needed, needed - own_tokens, recall_at_tokens(tokens, recalls, own_tokens)
