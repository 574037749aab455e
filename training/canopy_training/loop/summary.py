"""Figures with intervals for each arm and data set, and their differences from the single round, in pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_training.evaluation.bootstrap import RESAMPLES, Estimate, estimates, resample
from canopy_training.evaluation.summary import WEAK
from canopy_training.loop.arms import BASELINE, ROUNDS
from canopy_training.loop.outcome import Outcome

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

STAGES: Final = ("retrieve", "compress", "classify", "critic", "reader", "total", "overhead", "processor")
#: Digits of a figure in the report.
_DIGITS: Final = 6
ROLES: Final = ("critic", "classifier", "reader")


class Part(NamedTuple):
    """A question's share of a figure: the figure is the sum of the upper parts over the sum of the lower ones."""

    over: float
    under: float = 1.0


def _rounds() -> dict[str, Callable[[Outcome], Part]]:
    """Figures that are told after each round; ``number`` is bound where the function is made."""
    figures: dict[str, Callable[[Outcome], Part]] = {}
    for number in range(1, ROUNDS + 1):

        def items(one: Outcome, number: int = number) -> Part:
            return Part(float(one.after(number).found.items == one.gold_items), float(one.gold_items > 0))

        def fragments(one: Outcome, number: int = number) -> Part:
            return Part(float(one.after(number).found.fragments == one.gold_fragments), float(one.gold_fragments > 0))

        def recall(one: Outcome, number: int = number) -> Part:
            return _share(one.after(number).found.fragments, one.gold_fragments)

        def tokens(one: Outcome, number: int = number) -> Part:
            return Part(one.after(number).tokens)

        named = {"items": items, "fragments": fragments, "recall": recall, "tokens": tokens}
        figures |= {f"{name}_{number}": function for name, function in named.items()}
    return figures


def _share(part: int, whole: int) -> Part:
    return Part(part / whole) if whole else Part(0.0, 0.0)


def _kept(one: Outcome) -> Part:
    found = one.after(ROUNDS).found
    return _share(found.left, found.shown)


def _marked(name: str) -> Callable[[Outcome], Part]:
    return lambda one: Part(getattr(one.marks, name)) if one.marks is not None else Part(0.0, 0.0)


def _called(role: str) -> Callable[[Outcome], Part]:
    return lambda one: Part(float(one.calls.get(role, 0)))


def _spent(stage: str) -> Callable[[Outcome], Part]:
    return lambda one: Part(one.seconds.get(stage, 0.0))


#: Figures by name. Shares are of questions: ``items_2`` of those whose gold items are all in the evidence after round
#: 2, ``fragments_2`` of those whose gold fragments are; ``recall_2`` is the mean share of a question's gold fragments,
#: retrieved or not; ``kept`` the same of the retrieved items that can lose some, which is what compression alone does.
METRICS: Final[Mapping[str, Callable[[Outcome], Part]]] = {
    **_rounds(),
    "kept": _kept,
    **{name: _marked(name) for name in ("exact", "f1", "holds")},
    "rounds": lambda one: Part(float(len(one.rounds))),
    "calls": lambda one: Part(float(sum(one.calls.values()))),
    **{f"calls_{role}": _called(role) for role in ROLES},
    **{f"seconds_{stage}": _spent(stage) for stage in STAGES},
}


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the questions and what each arm reaches on it.

    Attributes:
        name: ``all`` or a data set.
        questions: Questions that every arm worked on.
        metrics: By arm and figure; :data:`METRICS` defines them.
        differences: By arm and figure, less the single round's, paired; none for that arm itself, nor of
            seconds and of single roles.
        stops: By arm, how often the loop ended for each reason.
    """

    name: str
    questions: int
    metrics: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[str, Estimate]]
    stops: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Figures of arms on one scope, with their resamples from the same draws.

    Attributes:
        columns: Column by arm and figure.
        values: float64 ``[C]``.
        samples: float64 ``[B, C]``.
    """

    columns: dict[tuple[str, str], int]
    values: Float64Array
    samples: Float64Array

    def of(self, arm: str, metric: str) -> tuple[float, Float64Array]:
        """A figure and its resamples ``[B]``."""
        column = self.columns[arm, metric]
        return float(self.values[column]), self.samples[:, column]


def shared(arms: Mapping[str, Sequence[Outcome]]) -> dict[str, list[Outcome]]:
    """The outcomes of the questions that every arm worked on, so that arms can be compared in pairs."""
    lists = list(arms.values())
    usable = [all(outcome.rounds for outcome in row) for row in zip(*lists, strict=True)]
    return {name: [one for one, keep in zip(row, usable, strict=True) if keep] for name, row in arms.items()}


def scopes(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, BoolArray]]:
    """Names and rows of the parts: all questions, then each data set; those with weak gold are parts of their own."""
    weak = np.array([one.weak for one in outcomes], np.bool_)
    dataset = np.array([one.dataset for one in outcomes])
    for mine, tag in ((~weak, ""), (weak, WEAK)):
        names = np.unique(dataset[mine]).tolist()
        if len(names) > 1:
            yield f"all{tag}", mine
        for name in names:
            yield f"{name}{tag}", mine & (dataset == name)


def sampled(
    arms: Mapping[str, Sequence[Outcome]], rows: BoolArray, *, resamples: int = RESAMPLES, seed: int = 0
) -> Sampled:
    """Resample all figures of all arms together.

    Args:
        arms: Outcomes by arm, over the same questions in the same order.
        rows: bool ``[n]``, the questions of the scope.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
    """
    columns: dict[tuple[str, str], int] = {}
    over, under = [], []
    for name, outcomes in arms.items():
        chosen = [one for one, keep in zip(outcomes, rows.tolist(), strict=True) if keep]
        for metric, part_of in METRICS.items():
            columns[name, metric] = len(columns)
            parts = [part_of(one) for one in chosen]
            over.append([part.over * part.under for part in parts])
            under.append([part.under for part in parts])
    values, samples = resample(
        np.array(over, np.float64).T, np.array(under, np.float64).T, resamples=resamples, seed=seed
    )
    return Sampled(columns, values, samples)


def summarise(name: str, arms: Mapping[str, Sequence[Outcome]], rows: BoolArray, figures: Sampled) -> Scope:
    """One scope's figures."""
    metrics, differences, stops = {}, {}, {}
    for arm, outcomes in arms.items():
        own = {metric: figures.of(arm, metric) for metric in METRICS}
        metrics[arm] = {metric: _estimate(*figure) for metric, figure in own.items()}
        if arm != BASELINE and BASELINE in arms:
            differences[arm] = {
                metric: _estimate(value - base, samples - bases)
                for metric, (value, samples) in own.items()
                if not metric.startswith(("seconds_", "calls_"))
                for base, bases in [figures.of(BASELINE, metric)]
            }
        stops[arm] = dict(Counter(one.stop for one, keep in zip(outcomes, rows.tolist(), strict=True) if keep))
    return Scope(name=name, questions=int(rows.sum()), metrics=metrics, differences=differences, stops=stops)


def _estimate(value: float, samples: Float64Array) -> Estimate:
    """A figure with its interval, to as many digits as mean something."""
    (one,) = estimates(np.array([value]), samples[:, None])
    if one.value is None or one.low is None or one.high is None:
        return one
    return Estimate(value=round(one.value, _DIGITS), low=round(one.low, _DIGITS), high=round(one.high, _DIGITS))
