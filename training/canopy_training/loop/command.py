"""``canopy evaluate --loop``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from canopy_backend.errors import TrainingError
from canopy_backend.manifest import file_sha256
from canopy_client.clients import CanopyClient
from canopy_client.jobs import EncoderInfo
from canopy_client.prompts import PROMPTS_VERSION
from canopy_client.settings import Settings
from canopy_training.data import Question, first_of_each, read_questions
from canopy_training.evaluation.report import write
from canopy_training.loop.arms import Arm, choose
from canopy_training.loop.corpus import pool, prepare
from canopy_training.loop.figure import draw
from canopy_training.loop.gold import gold_of
from canopy_training.loop.keep import Kept
from canopy_training.loop.report import REPORT_FILE, ArmRun, Report, Setting, make_report
from canopy_training.loop.run import Asked, open_stage, run_arm
from canopy_training.loop.tables import markdown

__all__ = ["REPORT_FILE", "TABLE_FILE", "LoopRequest", "evaluate_loop"]

TABLE_FILE: Final = "loop.md"
#: Arms that were run are kept in this folder of the home.
KEPT_FOLDER: Final = "evaluations"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRequest:
    """What ``canopy evaluate --loop`` was asked for.

    Attributes:
        data: Data files whose questions are asked; their items join the corpus.
        pool: Data files whose items alone join the corpus.
        split: Split of the questions; ``None`` for all. Items of every split join.
        limit: Most questions of each data set.
        arms: Patterns of arms; empty for all.
        model: Whether to use the language model of the settings.
        in_flight: Most questions at a time.
        resume: Take arms that an earlier run under the same conditions finished.
        seed: Of the bootstrap.
        command: The command line, for the report.
    """

    data: Sequence[Path]
    pool: Sequence[Path] = ()
    split: str | None = "dev"
    limit: int | None = None
    arms: Sequence[str] = ()
    model: bool = True
    in_flight: int = 8
    resume: bool = False
    seed: int = 0
    command: str = ""


def evaluate_loop(request: LoopRequest, settings: Settings, out: Path, console: Console) -> Report:
    """Run the arms, and write report, page and figure.

    Args:
        request: What to evaluate.
        settings: Where the servers are, as for ``canopy ask``.
        out: Folder of ``loop.json``, ``loop.md`` and ``loop.png``.
        console: Shows progress.

    Raises:
        TrainingError: No question is left, no arm fits, or two items have one id.
        InvalidData: A data file is malformed.
        ServerUnavailable: A server does not answer.
    """
    chosen = choose(request.arms, model=request.model)
    everything = [read_questions([file]) for file in request.data]
    questions = first_of_each(by_file(request.data, everything, request.split), request.limit)
    items = pool([*chain.from_iterable(everything), *(read_questions(request.pool) if request.pool else ())])
    found = [gold_of(question) for question in questions]
    asked = [Asked(question, gold) for question, (gold, _) in zip(questions, found, strict=True)]
    with (
        CanopyClient(settings.url, deadline_s=settings.deadline_s, tls=settings.tls_options()) as client,
        _bar(console, "indexing", len(items)) as advance,
    ):
        corpus, encoder = prepare(client, settings, items, progress=_steps(advance))
    runs, setting = asyncio.run(_run(request, settings, chosen, asked, (corpus, encoder, len(items)), console))
    report = make_report(
        runs,
        setting,
        lost=[
            f"{question.dataset}: {line}" for question, (_, lost) in zip(questions, found, strict=True) for line in lost
        ],
        command=request.command,
        seed=request.seed,
    )
    out.mkdir(parents=True, exist_ok=True)
    report.save(out)
    write(out / TABLE_FILE, markdown(report).encode())
    draw(report, out)
    return report


async def _run(
    request: LoopRequest,
    settings: Settings,
    arms: Sequence[Arm],
    asked: Sequence[Asked],
    corpus: tuple[str, EncoderInfo, int],
    console: Console,
) -> tuple[list[ArmRun], Setting]:
    """All arms, one after the other, each kept when it is done."""
    name, encoder, items = corpus
    runs: list[ArmRun] = []
    async with open_stage(settings, name, encoder, model=request.model) as stage:
        setting = Setting(
            files={file.name: file_sha256(file) for file in (*request.data, *request.pool)},
            split=request.split,
            limit=request.limit,
            questions=len(asked),
            items=items,
            encoder=encoder.revision,
            model="" if stage.llm is None else stage.llm.name,
            weights="" if stage.llm is None else _weights(settings),
            prompts=PROMPTS_VERSION,
            budget=stage.assembler.budget_tokens,
            deadline_s=stage.deadline_s,
            in_flight=request.in_flight,
        )
        kept = Kept(
            settings.home / KEPT_FOLDER, setting, [f"{one.question.dataset} {one.question.id}" for one in asked]
        )
        for arm in arms:
            run = kept.load(arm) if request.resume else None
            if run is None:
                started = time.perf_counter()
                with _bar(console, arm.name, len(asked)) as advance:
                    outcomes = await run_arm(stage, arm, asked, in_flight=request.in_flight, advance=advance)
                run = ArmRun(arm=arm, seconds=time.perf_counter() - started, outcomes=outcomes)
                kept.store(run)
            runs.append(run)
    return runs, setting


def by_file(files: Sequence[Path], questions: Sequence[Sequence[Question]], split: str | None) -> list[Question]:
    """The questions of a split; where files share a data set's name, each file is a set of its own, by its own name.

    Raises:
        TrainingError: No question is of the split.
    """
    homes: dict[str, set[Path]] = {}
    for file, own in zip(files, questions, strict=True):
        for one in own:
            homes.setdefault(one.dataset, set()).add(file)
    chosen = [
        one if len(homes[one.dataset]) == 1 else msgspec.structs.replace(one, dataset=file.name.split(".")[0])
        for file, own in zip(files, questions, strict=True)
        for one in own
        if split in (None, one.split)
    ]
    if not chosen:
        found = sorted({one.split for own in questions for one in own})
        raise TrainingError(f"no question of split {split!r} (found: {found})")
    return chosen


def _weights(settings: Settings) -> str:
    """Hash of the weights that the local stack serves; a model elsewhere is known by its name alone."""
    folder = None if settings.llm_url else settings.model_files()
    file = folder / "model.safetensors" if folder is not None else None
    return file_sha256(file) if file is not None and file.is_file() else ""


def _steps(advance: Callable[[int], None]) -> Callable[[int, int], None]:
    """From totals to steps."""
    done = 0

    def step(indexed: int, unchanged: int) -> None:
        nonlocal done
        advance(indexed + unchanged - done)
        done = indexed + unchanged

    return step


@contextmanager
def _bar(console: Console, name: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)
