"""One evaluation: every system on the same questions, compared in pairs."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np

from canopy_backend.errors import TrainingError
from canopy_backend.manifest import file_sha256
from canopy_training.data import Question
from canopy_training.evaluation.bootstrap import RESAMPLES
from canopy_training.evaluation.metrics import count, level_scores
from canopy_training.evaluation.report import Report, SystemReport
from canopy_training.evaluation.scoring import (
    BoolArray,
    ScoredQuestion,
    gold_items,
    locate_all,
    score_questions,
    shared,
    unique_items,
)
from canopy_training.evaluation.summary import WEAK, summarise
from canopy_training.evaluation.sweeps import GIVEN, SweepReport, run_sweeps
from canopy_training.evaluation.vectors import VectorSource
from canopy_training.gold import Located

_PACKAGES: Final = ("canopy-triton", "numpy", "torch", "transformers", "peft", "tokenizers", "sentencex")

#: Called with a system's name and its number of items; gives a function to call with the number of items done.
Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def unwatched(name: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """No progress at all."""
    return nullcontext(lambda _: None)


def run_evaluation(
    questions: Sequence[Question],
    sources: Sequence[VectorSource],
    *,
    files: Sequence[Path] = (),
    split: str | None = None,
    command: str = "",
    seed: int = 0,
    resamples: int = RESAMPLES,
    watch: Watch = unwatched,
) -> Report:
    """Evaluate one or more encoders on the same questions.

    Args:
        questions: The questions.
        sources: The encoders, names unique, the one to compare with first.
        files: The files that they come from, for the report.
        split: Their split, for the report.
        command: The command line, for the report.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        watch: Shows progress.

    Raises:
        TrainingError: No question could be encoded.
    """
    located, lost = locate_all(questions)
    scored: list[list[ScoredQuestion]] = []
    systems: list[SystemReport] = []
    for source in sources:
        found, system = _run(source, questions, located, watch)
        scored.append(found)
        systems.append(system)
    scored = shared(scored)
    if not scored[0]:
        raise TrainingError("no question could be encoded")
    names = [system.card.name for system in systems]
    by_name = dict(zip(names, scored, strict=True))
    return Report(
        command=command,
        seed=seed,
        resamples=resamples,
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        files={file.name: file_sha256(file) for file in files},
        split=split,
        questions=len(scored[0]),
        items=sum(len(question.items) for question in scored[0]),
        lost=lost,
        systems=systems,
        scopes=summarise({name: count(found) for name, found in by_name.items()}, resamples=resamples, seed=seed),
        sweeps=_sweeps(by_name, resamples, seed),
    )


def _sweeps(systems: Mapping[str, Sequence[ScoredQuestion]], resamples: int, seed: int) -> list[SweepReport]:
    """The selectors on all shown items, and on the pool's gold items alone, where no whole item may go."""
    parts = _parts(next(iter(systems.values())))
    found = run_sweeps(systems, parts, resamples=resamples, seed=seed)
    given = {name: gold_items(questions) for name, questions in systems.items()}
    first = next(iter(given.values()))
    pools = [(f"{name}{GIVEN}", mask) for name, mask in _parts(first) if name.startswith("all")] if first else []
    return found + (run_sweeps(given, pools, resamples=resamples, seed=seed) if pools else [])


def _parts(questions: Sequence[ScoredQuestion]) -> list[tuple[str, BoolArray]]:
    """The whole pool and each data set, as masks of the questions; weak gold apart."""
    weak = np.array([question.weak for question in questions])
    dataset = np.array([question.dataset for question in questions])
    parts: list[tuple[str, BoolArray]] = []
    for mine, tag in ((~weak, ""), (weak, WEAK)):
        if mine.any():
            parts.append((f"all{tag}", mine))
            parts += [(f"{name}{tag}", mine & (dataset == name)) for name in np.unique(dataset[mine]).tolist()]
    return parts


def _run(
    source: VectorSource, questions: Sequence[Question], located: Sequence[dict[str, Located]], watch: Watch
) -> tuple[list[ScoredQuestion], SystemReport]:
    """Score all questions with one encoder."""
    total = len(unique_items(questions))
    start = time.perf_counter()
    with watch(source.card.name, total) as advance:
        found = score_questions(source, questions, located, advance)
    omitted = source.omissions
    return found, SystemReport(
        card=source.card,
        seconds=time.perf_counter() - start,
        encoded=total - len(omitted.items),
        left_out_items=omitted.items,
        left_out_queries=omitted.queries,
        cut=omitted.cut,
        levels=level_scores(found),
    )
