"""What flat selectors keep and lose over the whole range of their knobs, beside the method's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_training.evaluation.bootstrap import RESAMPLES, Estimate, estimates, resample
from canopy_training.evaluation.scoring import BoolArray, ScoredItem, ScoredQuestion
from canopy_training.evaluation.selectors import FIXED, SWEPT, Knobs, Selector

Float64Array = npt.NDArray[np.float64]

#: The selector that the others are compared with.
RULE: Final = "canopy"
#: Behind the name of a part of which only the items with known gold fragments are shown.
GIVEN: Final = ", gold items only"


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
    """Run a selector over one or more questions, at each of its settings."""
    rows = [_row(question.items, selector(question.items, knobs)) for question in questions]
    tokens, recall, counted = zip(*rows, strict=True)
    return Sweep(knobs, np.array(tokens, np.float64), np.array(recall, np.float64), np.array(counted, np.float64))


def _row(items: Sequence[ScoredItem], masks: Sequence[BoolArray]) -> tuple[Float64Array, Float64Array, float]:
    """Tokens and recall of one question at each setting, and whether it counts for recall."""
    tokens = np.zeros(len(masks[0]))
    left = np.zeros(len(masks[0]))
    total = 0
    for item, mask in zip(items, masks, strict=True):
        tokens += mask @ item.tokens[:-1] + mask.any(axis=1) * item.tokens[-1]
        if item.gold is not None and item.hierarchy.size > 1:
            left += mask @ item.gold.astype(np.int64)
            total += int(item.gold.sum())
    return tokens, left / max(1, total), float(total > 0)


def tokens_at_recall(tokens: Float64Array, recalls: Float64Array, recall: Float64Array | float) -> Float64Array:
    """Tokens that a sweep needs for a recall, by linear interpolation between its settings.

    Args:
        tokens: float64 ``[..., S]``, of the settings from the strictest on, never falling.
        recalls: float64 ``[..., S]`` of the same.
        recall: float64 ``[...]``, what has to be reached.

    Returns:
        float64 ``[...]``: NaN for a recall that is not reached; the strictest setting's tokens for a lower one.
    """
    wanted = np.asarray(recall, np.float64)[..., None]
    reached = recalls >= wanted
    at = reached.argmax(axis=-1, keepdims=True)
    before = np.maximum(at - 1, 0)
    low, high = (np.take_along_axis(recalls, place, -1) for place in (before, at))
    share = np.ones_like(high)
    np.divide(wanted - low, high - low, out=share, where=high > low)
    few, many = (np.take_along_axis(tokens, place, -1) for place in (before, at))
    result = few + share * (many - few)
    result[~reached.any(axis=-1)] = np.nan
    return np.asarray(result[..., 0])


def recall_at_tokens(tokens: Float64Array, recalls: Float64Array, budget: Float64Array | float) -> Float64Array:
    """Recall that a sweep reaches with a number of tokens, by linear interpolation; arguments as above.

    Returns:
        float64 ``[...]``: NaN for fewer tokens than the strictest setting takes; the mildest setting's recall for more
        than that one takes.
    """
    allowed = np.asarray(budget, np.float64)[..., None]
    paid = tokens <= allowed
    at = np.maximum(paid.sum(axis=-1, keepdims=True) - 1, 0)
    after = np.minimum(at + 1, tokens.shape[-1] - 1)
    few, many = (np.take_along_axis(tokens, place, -1) for place in (at, after))
    share = np.zeros_like(few)
    np.divide(allowed - few, many - few, out=share, where=many > few)
    low, high = (np.take_along_axis(recalls, place, -1) for place in (at, after))
    result = low + share * (high - low)
    result[~paid.any(axis=-1)] = np.nan
    return np.asarray(result[..., 0])


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A selector's points on one part of the pool, and how it stands against the rule.

    Attributes:
        scope: The part.
        system: The encoder whose scores it reads.
        selector: The selector.
        knobs: Its settings.
        tokens: Mean kept tokens a question at each.
        recalls: Mean recall at each.
        tokens_at_equal_recall: Tokens that it needs for the recall that the rule reaches with the last encoder.
        saved: That less the tokens of the rule, paired: more than 0 where the rule needs fewer.
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


def run_sweeps(
    systems: Mapping[str, Sequence[ScoredQuestion]],
    scopes: Sequence[tuple[str, BoolArray]],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[SweepReport]:
    """All selectors on all encoders, in each part of the pool.

    Args:
        systems: Scored questions by encoder, the same questions in the same order.
        scopes: Names of the parts, and their questions, bool ``[Q]``.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
    """
    selectors = {**FIXED, **SWEPT}
    sweeps = {
        (system, name): run_sweep(questions, selector, knobs)
        for system, questions in systems.items()
        for name, (selector, knobs) in selectors.items()
    }
    last = list(systems)[-1]
    reports = []
    for scope, questions in scopes:
        rule = sweeps[last, RULE].where(questions)
        point, drawn = rule.points(), rule.samples(resamples, seed)
        for (system, name), sweep in sweeps.items():
            mine = sweep.where(questions)
            tokens, recalls = mine.points()
            value = _beside(tokens[None], recalls[None], point[0], point[1])[0]
            samples = _beside(*mine.samples(resamples, seed), drawn[0][:, 0], drawn[1][:, 0])
            equal, saved, reached = estimates(value, samples)
            reports.append(
                SweepReport(
                    scope=scope,
                    system=system,
                    selector=name,
                    knobs=list(sweep.knobs),
                    tokens=tokens.tolist(),
                    recalls=recalls.tolist(),
                    tokens_at_equal_recall=equal,
                    saved=saved,
                    recall_at_equal_tokens=reached,
                )
            )
    return reports


def _beside(
    tokens: Float64Array, recalls: Float64Array, own_tokens: Float64Array, own_recall: Float64Array
) -> Float64Array:
    """Tokens at the rule's recall, that less the rule's tokens, recall at the rule's tokens: float64 ``[B, 3]``."""
    needed = tokens_at_recall(tokens, recalls, own_recall)
    return np.stack([needed, needed - own_tokens, recall_at_tokens(tokens, recalls, own_tokens)], axis=1)
