"""Metrics with intervals for the whole pool, each modality and each data set, of one system or of two in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from canopy_training.evaluation.bootstrap import RESAMPLES, Estimate, estimates, resample
from canopy_training.evaluation.metrics import METRICS, Counts
from canopy_training.evaluation.scoring import BoolArray

#: Behind the name of a part whose gold was found from the answers alone.
WEAK: Final = " (answers only)"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the pool and what the systems reach on it.

    Attributes:
        name: For instance ``all``, ``table``, ``nq``, ``ottqa, table``.
        kind: ``all``, ``modality``, ``dataset`` or ``dataset and modality``.
        questions: Questions that show items of this part.
        items: Shown items, one counted for each question that shows it.
        metrics: By system and metric; :data:`canopy_training.evaluation.metrics.METRICS` defines them.
        differences: By metric, the last system less the first, paired; empty with one system.
        counts: By system and column, the sums that the metrics are made of.
    """

    name: str
    kind: str
    questions: int
    items: int
    metrics: dict[str, dict[str, Estimate]]
    differences: dict[str, Estimate]
    counts: dict[str, dict[str, int]]


def summarise(systems: Mapping[str, Counts], *, resamples: int = RESAMPLES, seed: int = 0) -> list[Scope]:
    """The metrics of all parts of the pool.

    Args:
        systems: Counts by system, over the same questions and items in the same order.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
    """
    first = next(iter(systems.values()))
    found = []
    for name, kind, rows in scopes(first):
        chosen = {system: counts.where(rows) for system, counts in systems.items()}
        figures = {s: resample(*c.fractions(), resamples=resamples, seed=seed) for s, c in chosen.items()}
        metrics = {s: dict(zip(METRICS, estimates(*figure), strict=True)) for s, figure in figures.items()}
        differences = {}
        if len(figures) > 1:
            (value, samples), *_, (other, others) = figures.values()
            differences = dict(zip(METRICS, estimates(other - value, others - samples), strict=True))
        found.append(
            Scope(
                name=name,
                kind=kind,
                questions=len(np.unique(first.question[rows])),
                items=int(rows.sum()),
                metrics=metrics,
                differences=differences,
                counts={system: counts.sums() for system, counts in chosen.items()},
            )
        )
    return found


def scopes(counts: Counts) -> Iterator[tuple[str, str, BoolArray]]:
    """Names, kinds and rows of the parts of a pool; questions with weak gold are parts of their own."""
    for weak in (False, True):
        mine = counts.weak == weak
        if not mine.any():
            continue
        tag = WEAK if weak else ""
        yield f"all{tag}", "all", mine
        for modality in np.unique(counts.modality[mine]).tolist():
            yield f"{modality}{tag}", "modality", mine & (counts.modality == modality)
        for dataset in np.unique(counts.dataset[mine]).tolist():
            rows = mine & (counts.dataset == dataset)
            yield f"{dataset}{tag}", "dataset", rows
            modalities = np.unique(counts.modality[rows]).tolist()
            for modality in modalities if len(modalities) > 1 else ():
                yield f"{dataset}, {modality}{tag}", "dataset and modality", rows & (counts.modality == modality)
