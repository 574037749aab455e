"""What the loop is meant to reach, as rows that say whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from canopy_training.evaluation.bootstrap import Estimate, estimates
from canopy_training.loop.arms import BASELINE, ROUNDS, WHOLE
from canopy_training.loop.summary import Float64Array, Sampled

#: The data set of two-hop questions that the aims are about.
TWO_HOP: Final = "hotpotqa"

Figure = tuple[float, Float64Array]


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """One aim and one arm.

    Attributes:
        what: What is measured.
        unit: ``points``, ``times``, ``%``, ``ms`` or empty.
        wanted: The bound, as a sentence says it.
        arm: The loop that is measured.
        value: What it reaches.
        hit: Whether the value is within the bound; its interval may reach beyond.
    """

    what: str
    unit: str
    wanted: str
    arm: str
    value: Estimate
    hit: bool


class _Goal(NamedTuple):
    """An aim before it is measured; ``needs`` are the arms that it looks at beside the loop's own."""

    what: str
    unit: str
    wanted: str
    needs: Callable[[str], tuple[str, ...]]
    figure: Callable[[Sampled, str], Figure]
    within: Callable[[float], bool]


def _points(metric: str, arm: str, other: str) -> Callable[[Sampled], Figure]:
    def figure(sampled: Sampled) -> Figure:
        (mine, my_samples), (its, its_samples) = sampled.of(arm, metric), sampled.of(other, metric)
        return 100 * (mine - its), 100 * (my_samples - its_samples)

    return figure


def _ratio(metric: str, arm: str, other: str) -> Callable[[Sampled], Figure]:
    def figure(sampled: Sampled) -> Figure:
        (mine, my_samples), (its, its_samples) = sampled.of(arm, metric), sampled.of(other, metric)
        return mine / its, my_samples / its_samples

    return figure


def _scaled(metric: str, factor: float) -> Callable[[Sampled, str], Figure]:
    def figure(sampled: Sampled, arm: str) -> Figure:
        value, samples = sampled.of(arm, metric)
        return factor * value, factor * samples

    return figure


def _saved(sampled: Sampled, arm: str) -> Figure:
    value, samples = _ratio(f"tokens_{ROUNDS}", arm, arm + WHOLE)(sampled)
    return 100 * (1 - value), 100 * (1 - samples)


def _items_over(other: str) -> Callable[[Sampled, str], Figure]:
    return lambda sampled, arm: _points(f"items_{ROUNDS}", arm, other)(sampled)


def _only(*names: str) -> Callable[[str], tuple[str, ...]]:
    return lambda arm: names


def _whole(arm: str) -> tuple[str, ...]:
    return (arm + WHOLE,)


_ITEMS: Final = "questions with all gold items, over a single round of k = "
GOALS: Final[tuple[_Goal, ...]] = (
    _Goal(f"{_ITEMS}10", "points", "at least 10", _only(BASELINE), _items_over(BASELINE), lambda x: x >= 10),
    _Goal(f"{_ITEMS}20", "points", "above 0", _only("single-20"), _items_over("single-20"), lambda x: x > 0),
    _Goal(f"{_ITEMS}30", "points", "at least 0", _only("single-30"), _items_over("single-30"), lambda x: x >= 0),
    _Goal("rounds", "", "at most 2.2", _only(), _scaled("rounds", 1), lambda x: x <= 2.2),
    _Goal(
        "reader tokens against a single round of k = 10",
        "times",
        "at most 1.3",
        _only(BASELINE),
        lambda sampled, arm: _ratio(f"tokens_{ROUNDS}", arm, BASELINE)(sampled),
        lambda x: x <= 1.3,
    ),
    _Goal("reader tokens saved by compression", "%", "at least 14", _whole, _saved, lambda x: x >= 14),
    _Goal(
        "gold-fragment recall lost by compression",
        "points",
        "at most 15",
        _whole,
        lambda sampled, arm: _points(f"recall_{ROUNDS}", arm + WHOLE, arm)(sampled),
        lambda x: x <= 15,
    ),
    _Goal("calls of the language model", "", "at most 3.2", _only(), _scaled("calls", 1), lambda x: x <= 3.2),
    _Goal(
        "overhead of the orchestrator, processor time",
        "ms",
        "under 5",
        _only(),
        _scaled("seconds_processor", 1000),
        lambda x: x < 5,
    ),
)


def judge(figures: Sampled, loops: Mapping[str, bool]) -> list[Aim]:
    """Every aim for every loop whose arms to compare with were run.

    Args:
        figures: Of the two-hop questions.
        loops: Names of the loops' arms, and whether each asked the reader; calls are judged only where it did.
    """
    return list(_judged(figures, loops))


def _judged(figures: Sampled, loops: Mapping[str, bool]) -> Iterator[Aim]:
    known = {arm for arm, _ in figures.columns}
    for goal in GOALS:
        for arm, read in loops.items():
            counts_calls = goal.what.startswith("calls")
            if not known.issuperset((arm, *goal.needs(arm))) or (counts_calls and not read):
                continue
            value, samples = goal.figure(figures, arm)
            (estimate,) = estimates(np.array([value]), samples[:, None])
            yield Aim(
                what=goal.what,
                unit=goal.unit,
                wanted=goal.wanted,
                arm=arm,
                value=estimate,
                hit=bool(np.isfinite(value)) and goal.within(round(value, 9)),
            )
