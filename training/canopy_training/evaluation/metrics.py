"""The method's metrics as counts: one row for each shown item of each question, so that anything can be resampled.

arXiv 2610.00923, sections on training and on evaluation. A metric is a fraction whose parts are sums over rows; see
:data:`METRICS`. A decision of the walk is an inner node of a shown item, and its outcome is read off the fragments
that are left: all (kept), some (split), none (dropped). *Splittable* items have two fragments or more; images never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from canopy_backend.hierarchy import Hierarchy
from canopy_backend.refinement import refine
from canopy_training.evaluation.scoring import BoolArray, ScoredItem, ScoredQuestion
from canopy_training.instances import correct, instances

Float64Array = npt.NDArray[np.float64]

#: A difference of scores that is called a hair.
HAIR: Final = 0.005
#: Losses are told by the depth of the node at which they happen; deeper ones count with the last.
DEPTHS: Final = 8


class Metric(NamedTuple):
    """A fraction of two columns of :class:`Counts`.

    ``how`` says what is averaged: ``pooled`` is the sum of one column over the sum of the other; ``question`` is the
    mean of that fraction over the questions where the lower column is not 0; ``per_question`` is the sum of the upper
    column over the number of questions.
    """

    over: str
    under: str
    how: Literal["pooled", "question", "per_question"] = "pooled"


METRICS: Final[dict[str, Metric]] = {
    "decision_accuracy": Metric("decided", "instances"),
    "pruned": Metric("pruned", "splittable"),
    "recall": Metric("gold_left", "gold", "question"),
    "kept_tokens": Metric("tokens_kept", "", "per_question"),
    "whole_tokens": Metric("tokens_whole", "", "per_question"),
    "kept_share": Metric("tokens_kept", "tokens_whole"),
    "whole_gold": Metric("whole_gold", "splittable_gold"),
    "whole_other": Metric("whole_other", "splittable_other"),
    "kept": Metric("kept", "decisions"),
    "split": Metric("split", "decisions"),
    "dropped": Metric("dropped", "decisions"),
    "whole_by_a_hair": Metric("whole_by_a_hair", "splittable"),
    "tied_siblings": Metric("tied", "decisions"),
    "gold_lost_to_sibling": Metric("gold_lost", "gold"),
    "gold_lost_beside_gold": Metric("gold_lost_beside_gold", "gold"),
    "gold_lost_by_a_hair": Metric("gold_lost_by_a_hair", "gold"),
    "recall_of_any_item": Metric("gold_left_any", "gold_any", "question"),
}

_LOST: Final = tuple(f"gold_lost_{depth}" for depth in range(1, DEPTHS + 1))
COLUMNS: Final = (
    "instances",
    "decided",
    "splittable",
    "pruned",
    "gold",
    "gold_left",
    "gold_any",
    "gold_left_any",
    "tokens_kept",
    "tokens_whole",
    "splittable_gold",
    "splittable_other",
    "whole_gold",
    "whole_other",
    "decisions",
    "kept",
    "split",
    "dropped",
    "whole",
    "whole_by_a_hair",
    "tied",
    "gold_lost",
    "gold_lost_beside_gold",
    "gold_lost_by_a_hair",
    "fragments",
    "fragments_kept",
    *_LOST,
)
_PLACE: Final = {name: place for place, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """One row for each shown item of each question.

    Attributes:
        values: float64 ``[rows, len(COLUMNS)]``.
        question: int64 ``[rows]``, place of the question.
        dataset: Data set of each row.
        modality: Modality of each row.
        weak: bool ``[rows]``, rows of questions whose gold comes from the answers alone.
    """

    values: Float64Array
    question: npt.NDArray[np.int64]
    dataset: npt.NDArray[np.str_]
    modality: npt.NDArray[np.str_]
    weak: BoolArray

    def __len__(self) -> int:
        return len(self.values)

    def where(self, rows: BoolArray) -> Counts:
        """Some of the rows."""
        return Counts(self.values[rows], self.question[rows], self.dataset[rows], self.modality[rows], self.weak[rows])

    def sums(self) -> dict[str, int]:
        """The sum of each column."""
        return dict(zip(COLUMNS, np.rint(self.values.sum(axis=0)).astype(int).tolist(), strict=True))

    def fractions(self) -> tuple[Float64Array, Float64Array]:
        """Upper and lower parts of each metric for each question, float64 ``[Q, len(METRICS)]``.

        Whatever is averaged, a metric is the sum of its upper column over the sum of its lower one.
        """
        _, place = np.unique(self.question, return_inverse=True)
        n_questions = int(place.max(initial=-1)) + 1
        columns = np.zeros((n_questions, len(COLUMNS)))
        np.add.at(columns, place, self.values)
        over = np.zeros((n_questions, len(METRICS)))
        under = np.ones((n_questions, len(METRICS)))
        for at, metric in enumerate(METRICS.values()):
            over[:, at] = columns[:, _PLACE[metric.over]]
            if metric.how != "per_question":
                under[:, at] = columns[:, _PLACE[metric.under]]
            if metric.how == "question":
                over[:, at] /= np.maximum(under[:, at], 1)
                under[:, at] = under[:, at] > 0
        return over, under


def count(questions: Sequence[ScoredQuestion]) -> Counts:
    """The counts of all shown items."""
    rows = [(question, item) for question in questions for item in question.items]
    return Counts(
        np.array([count_item(item) for _, item in rows], np.float64).reshape(-1, len(COLUMNS)),
        np.array([question.place for question, _ in rows], np.int64),
        np.array([question.dataset for question, _ in rows], np.str_),
        np.array([item.modality for _, item in rows], np.str_),
        np.array([question.weak for question, _ in rows], np.bool_),
    )


def count_item(item: ScoredItem) -> list[float]:
    """The columns of one shown item."""
    hierarchy, scores = item.hierarchy, item.scores
    kept_nodes = refine(hierarchy, scores)
    left = fragments_of(hierarchy, kept_nodes)
    row: dict[str, float] = dict.fromkeys(COLUMNS, 0)
    row["fragments"], row["fragments_kept"] = len(left), int(left.sum())
    row["tokens_whole"] = int(item.tokens.sum())
    row["tokens_kept"] = int(item.tokens[:-1][left].sum() + item.tokens[-1])
    if item.gold is not None:
        row["gold_any"], row["gold_left_any"] = int(item.gold.sum()), int((item.gold & left).sum())
    if len(left) >= 2:
        _count_decisions(row, item, left)
        kept_whole = bool(kept_nodes[0] == 0)
        kind = "gold" if item.is_gold else "other"
        row["splittable"], row[f"splittable_{kind}"] = 1, 1
        row["pruned"] = not left.all()
        row["whole"], row[f"whole_{kind}"] = kept_whole, kept_whole
        best = scores[hierarchy.parent == 0].max()
        row["whole_by_a_hair"] = kept_whole and bool(scores[0] - best < HAIR)
        if item.gold is not None:
            _count_gold(row, item, item.gold, left)
    return [float(row[name]) for name in COLUMNS]


def fragments_of(hierarchy: Hierarchy, nodes: Iterable[int]) -> BoolArray:
    """The fragments under some nodes, bool ``[F]``."""
    chosen = np.fromiter(nodes, np.intp)
    edges = np.zeros(hierarchy.n_fragments + 1, np.int64)
    np.add.at(edges, hierarchy.first[chosen], 1)
    np.add.at(edges, hierarchy.last[chosen], -1)
    covered: BoolArray = np.cumsum(edges[:-1]) > 0
    return covered


def under(hierarchy: Hierarchy, fragments: BoolArray) -> npt.NDArray[np.int64]:
    """How many of some fragments, bool ``[F]``, are under each node, int64 ``[N]``."""
    inside = np.concatenate([[0], np.cumsum(fragments)])
    held: npt.NDArray[np.int64] = inside[hierarchy.last] - inside[hierarchy.first]
    return held


def _count_decisions(row: dict[str, float], item: ScoredItem, left: BoolArray) -> None:
    """Outcomes of the item's inner nodes, and inner nodes two of whose children have exactly one score."""
    hierarchy = item.hierarchy
    inner = ~hierarchy.is_leaf
    held, size = under(hierarchy, left)[inner], (hierarchy.last - hierarchy.first)[inner]
    row["decisions"] = int(inner.sum())
    row["kept"], row["dropped"] = int((held == size).sum()), int((held == 0).sum())
    row["split"] = row["decisions"] - row["kept"] - row["dropped"]
    order = np.lexsort((item.scores, hierarchy.parent))[1:]
    parents, scores = hierarchy.parent[order], item.scores[order]
    equal = (np.diff(parents) == 0) & (np.diff(scores) == 0)
    row["tied"] = len(np.unique(parents[1:][equal]))


def _count_gold(row: dict[str, float], item: ScoredItem, gold: BoolArray, left: BoolArray) -> None:
    """Right decisions, gold that is left, and where gold was lost.

    A gold fragment is lost at one node: the highest on its path of which nothing is left. That node scored lower than
    its parent while a sibling did not.
    """
    hierarchy, scores = item.hierarchy, item.scores
    found = instances(hierarchy, gold)
    row["instances"], row["decided"] = len(found), int(correct(hierarchy, found, scores).sum())
    row["gold"], row["gold_left"] = int(gold.sum()), int((gold & left).sum())
    gone = under(hierarchy, left) == 0
    held = under(hierarchy, gold)
    parent = hierarchy.parent
    for node in np.flatnonzero(gone & ~gone[parent] & (held > 0)).tolist():
        above = int(parent[node])
        siblings = [child for child in hierarchy.children(above) if not gone[child]]
        lost = int(held[node])
        row["gold_lost"] += lost
        row[_LOST[min(int(hierarchy.depth[node]), DEPTHS) - 1]] += lost
        row["gold_lost_beside_gold"] += lost * bool(held[siblings].any())
        row["gold_lost_by_a_hair"] += lost * bool(scores[above] - scores[node] < HAIR)


class LevelScores(NamedTuple):
    """Scores of one kind of node at one depth, less the root's.

    Attributes:
        depth: Depth of the nodes, from 1.
        gold: Whether they hold gold.
        nodes: How many they are.
        quantiles: The 10 %, 25 %, 50 %, 75 % and 90 % quantile.
    """

    depth: int
    gold: bool
    nodes: int
    quantiles: tuple[float, ...]


def level_scores(questions: Sequence[ScoredQuestion], depths: int = 6) -> list[LevelScores]:
    """Root-relative scores of gold and other nodes of located items, level by level."""
    depth, holds, relative = [], [], []
    for item in (item for question in questions for item in question.items):
        if item.gold is not None and item.hierarchy.size > 1:
            depth.append(item.hierarchy.depth)
            holds.append(under(item.hierarchy, item.gold) > 0)
            relative.append(item.scores - item.scores[0])
    if not depth:
        return []
    depth_of, is_gold, values = np.concatenate(depth), np.concatenate(holds), np.concatenate(relative)
    found = []
    for level in range(1, depths + 1):
        for gold in (True, False):
            chosen = values[(depth_of == level) & (is_gold == gold)]
            if len(chosen):
                quantiles = np.quantile(chosen, (0.1, 0.25, 0.5, 0.75, 0.9)).tolist()
                found.append(LevelScores(level, gold, len(chosen), tuple(quantiles)))
    return found
