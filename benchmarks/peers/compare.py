"""What a peer needs for the recall that the method reaches, paired over the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.peers.arms import ARMS, Arm
from benchmarks.peers.collect import GOLD, MODES, Collected, as_sweep, own
from benchmarks.peers.measures import BoolArray, Float64Array, Measured
from canopy_training.evaluation.bootstrap import Estimate, estimates, resample
from canopy_training.evaluation.scoring import ScoredQuestion, gold_items
from canopy_training.evaluation.selectors import canopy, whole
from canopy_training.evaluation.sweeps import Sweep, recall_at_tokens, tokens_at_recall

#: The part that holds all questions.
POOL: Final = "all"
#: In place of an encoder's name: everything is kept.
WHOLE: Final = "whole items"


class OwnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the method keeps, or what keeping everything costs.

    Attributes:
        mode: What is shown.
        scope: The whole pool or a data set.
        system: The encoder, or :data:`WHOLE`.
        questions: Questions of the scope.
        tokens: Kept tokens a question.
        recall: Share of gold fragments left in items with two fragments or more.
        recall_any: The same with items of one fragment.
    """

    mode: str
    scope: str
    system: str
    questions: int
    tokens: Estimate
    recall: Estimate
    recall_any: Estimate


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm keeps at each setting, and how it stands against the method with one encoder.

    Attributes:
        mode: What is shown.
        scope: The whole pool or a data set.
        system: The encoder that the method reads with.
        arm: The arm.
        questions: Questions of the scope.
        knobs: Its settings.
        tokens: Mean kept tokens a question at each.
        recalls: Mean recall at each.
        refused: Items for which the peer raised an error, at each, of the whole pool.
        knob: The setting that reaches the method's recall, between two settings by linear interpolation.
        tokens_at_equal_recall: Tokens at it.
        saved: That less the method's tokens, paired: more than 0 where the method needs fewer.
        saved_any: The same where recall counts items of one fragment too.
        recall_at_equal_tokens: Recall that the arm reaches with the method's tokens.
        own_tokens: Tokens at the arm's own setting.
        own_recall: Recall at it.
    """

    mode: str
    scope: str
    system: str
    arm: str
    questions: int
    knobs: list[float]
    tokens: list[float]
    recalls: list[float]
    refused: list[int]
    knob: float | None
    tokens_at_equal_recall: Estimate
    saved: Estimate
    saved_any: Estimate
    recall_at_equal_tokens: Estimate
    own_tokens: float | None
    own_recall: float | None


@dataclass(frozen=True, slots=True)
class Draw:
    """Resamples of the bootstrap, and their seed."""

    resamples: int
    seed: int


def frontier(tokens: Float64Array, recalls: Float64Array) -> npt.NDArray[np.intp]:
    """The settings that are worth choosing, the cheapest first: each has more recall than every cheaper one.

    A knob need not be monotone (a share that rounds down to no sentence keeps all of them), and a peer is to be seen
    at its best.
    """
    order = np.lexsort((-recalls, tokens))
    best = np.maximum.accumulate(recalls[order])
    worth = np.concatenate([[True], best[1:] > best[:-1]])
    return np.asarray(order[worth])


def own_results(systems: Mapping[str, Sequence[ScoredQuestion]], draw: Draw) -> list[OwnResult]:
    """The method with each encoder, and everything, in each mode and scope."""
    first = next(iter(systems.values()))
    found = []
    for mode in MODES:
        scopes = scopes_of(first, mode)
        rows = {name: own(scored, canopy, mode) for name, scored in systems.items()} | {WHOLE: own(first, whole, mode)}
        for scope, chosen in scopes.items():
            for name, measured in rows.items():
                mine = [row for row, taken in zip(measured, chosen, strict=True) if taken]
                tokens, recall, recall_any = _figures(mine, draw)
                found.append(
                    OwnResult(
                        mode=mode,
                        scope=scope,
                        system=name,
                        questions=len(mine),
                        tokens=tokens,
                        recall=recall,
                        recall_any=recall_any,
                    )
                )
    return found


def arm_results(collected: Collected, systems: Mapping[str, Sequence[ScoredQuestion]], draw: Draw) -> list[ArmResult]:
    """All arms in each mode and scope, against the method with each encoder."""
    found = []
    for mode in MODES:
        rules = {system: own(scored, canopy, mode) for system, scored in systems.items()}
        for scope, chosen in scopes_of(next(iter(systems.values())), mode).items():
            for arm in ARMS:
                found += _against(arm, mode, scope, chosen, collected, rules, draw)
    return found


def scopes_of(scored: Sequence[ScoredQuestion], mode: str) -> dict[str, BoolArray]:
    """The whole pool and each data set, as masks of a mode's questions; weakly annotated ones are in none."""
    shown = gold_items(scored) if mode == GOLD else scored
    strong = np.array([not question.weak for question in shown], np.bool_)
    dataset = np.array([question.dataset for question in shown], np.str_)
    scopes = {POOL: strong} if strong.any() else {}
    names = np.unique(dataset[strong]).tolist()
    return scopes | {name: strong & (dataset == name) for name in names if len(names) > 1}


class Stand(NamedTuple):
    """A peer beside the method: tokens at its recall, those less its tokens, recall at its tokens."""

    needed: Estimate
    saved: Estimate
    reached: Estimate


def stand(peer: Sweep, rules: Sequence[Sweep], draw: Draw) -> list[Stand]:
    """A peer's settings beside one or more settings of the method, on the same questions.

    Args:
        peer: The peer's settings.
        rules: Sweeps of one setting.
        draw: Of the bootstrap; the same draws serve the peer and all rules.
    """
    use = frontier(*peer.points())
    tokens, recalls = (figure[use] for figure in peer.points())
    samples = _samples([peer, *rules], draw)
    mine = [figure[:, use] for figure in samples[0]]
    found = []
    for rule, drawn in zip(rules, samples[1:], strict=True):
        value = _beside(tokens[None], recalls[None], *rule.points())
        found.append(Stand(*estimates(value[0], _beside(*mine, *(figure[:, 0] for figure in drawn)))))
    return found


def _against(
    arm: Arm,
    mode: str,
    scope: str,
    chosen: BoolArray,
    collected: Collected,
    rules: Mapping[str, Sequence[Measured]],
    draw: Draw,
) -> list[ArmResult]:
    """One arm in one mode and scope, against the method with each encoder."""
    rows, refused = collected.rows[mode, arm.name], collected.refused[mode, arm.name]
    sweep, sweep_any = (as_sweep(arm.knobs, rows, any_item=every).where(chosen) for every in (False, True))
    beside, beside_any = (
        [as_sweep((0,), rule, any_item=every).where(chosen) for rule in rules.values()] for every in (False, True)
    )
    tokens, recalls = sweep.points()
    place = arm.knobs.index(arm.own) if arm.own in arm.knobs else None
    stands, stands_any = stand(sweep, beside, draw), stand(sweep_any, beside_any, draw)
    return [
        ArmResult(
            mode=mode,
            scope=scope,
            system=system,
            arm=arm.name,
            questions=len(sweep.tokens),
            knobs=list(arm.knobs),
            tokens=tokens.round(2).tolist(),
            recalls=recalls.round(5).tolist(),
            refused=[refused[at] for at in range(len(arm.knobs))],
            knob=_knob(sweep, float(rule.points()[1][0])),
            tokens_at_equal_recall=one.needed,
            saved=one.saved,
            saved_any=one_any.saved,
            recall_at_equal_tokens=one.reached,
            own_tokens=None if place is None else float(tokens[place]),
            own_recall=None if place is None else float(recalls[place]),
        )
        for system, rule, one, one_any in zip(rules, beside, stands, stands_any, strict=True)
    ]


def _samples(sweeps: Sequence[Sweep], draw: Draw) -> list[tuple[Float64Array, Float64Array]]:
    """Mean tokens and recall of each sweep in each resample, float64 ``[B, S]``; the same draws for all."""
    over = np.concatenate([part for sweep in sweeps for part in (sweep.tokens, sweep.recall)], axis=1)
    under = np.concatenate(
        [
            part
            for sweep in sweeps
            for part in (np.ones_like(sweep.tokens), np.ones_like(sweep.recall) * sweep.counted[:, None])
        ],
        axis=1,
    )
    _, drawn = resample(over, under, resamples=draw.resamples, seed=draw.seed)
    parts = np.split(drawn, np.cumsum([len(sweep.knobs) for sweep in sweeps for _ in range(2)])[:-1], axis=1)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _beside(
    tokens: Float64Array, recalls: Float64Array, own_tokens: Float64Array, own_recall: Float64Array
) -> Float64Array:
    needed = tokens_at_recall(tokens, recalls, own_recall)
    return np.stack([needed, needed - own_tokens, recall_at_tokens(tokens, recalls, own_tokens)], axis=1)


def _knob(sweep: Sweep, recall: float) -> float | None:
    tokens, recalls = sweep.points()
    use = frontier(tokens, recalls)
    value = float(tokens_at_recall(np.array(sweep.knobs, np.float64)[use], recalls[use], recall))
    return value if np.isfinite(value) else None


def _figures(rows: Sequence[Measured], draw: Draw) -> list[Estimate]:
    """Tokens, recall, recall with items of one fragment."""
    one, other = as_sweep((0,), rows), as_sweep((0,), rows, any_item=True)
    over = np.concatenate([one.tokens, one.recall, other.recall], axis=1)
    under = np.stack([np.ones(len(rows)), one.counted, other.counted], axis=1)
    return estimates(*resample(over, under, resamples=draw.resamples, seed=draw.seed))
