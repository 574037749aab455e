"""``canopy train-critic``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from canopy_backend.errors import TrainingError
from canopy_client.critic import MAX_TOKENS
from canopy_client.llm.base import Message
from canopy_export.example import NO_ADAPTER, adapter_for, example_model
from canopy_export.source import adapter_revision
from canopy_training.card import CARD_PAGE
from canopy_training.checkpoint import STATE_FILE
from canopy_training.critic.corpus import Encoder, Pool
from canopy_training.critic.judging import Scores, judge_all, scores_of
from canopy_training.critic.model import ChatModel
from canopy_training.critic.record import CriticRun, card_page, fingerprint_of, record, scores_table, weights_hash
from canopy_training.critic.samples import stories
from canopy_training.critic.states import Searched, items_of, load, save, search_all
from canopy_training.critic.train import CriticSettings, Fitted, Progress, fit
from canopy_training.data import Question, first_of_each, read_questions
from canopy_training.manifest import RUN_FILE, hashes

_D: Final = CriticSettings()
#: Says, in a model's folder, that an adapter is merged into it; the local stack writes it.
_STAMP: Final = "canopy_adapter.txt"


def train_critic(
    data: Annotated[list[Path], typer.Option(help="Data file with questions that rest on two items; several times.")],
    model: Annotated[
        Path, typer.Option(help="Folder of the chat model: weights, tokenizer.json, chat template; nothing merged in.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the adapter; a killed run goes on from it.")],
    tables: Annotated[
        list[Path] | None, typer.Option(help="Data file with questions about tables, for the classifier.")
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(envvar="CANOPY_MODEL", help="Encoder's folder; by default all-MiniLM-L6-v2.")
    ] = None,
    encoder_adapter: Annotated[
        Path | None, typer.Option(envvar="CANOPY_ADAPTER", help="Node encoder's adapter; none for no adapter.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="Adapter folder to go on from.")] = None,
    split: Annotated[str, typer.Option(help="Split to train on.")] = "train",
    dev_split: Annotated[str, typer.Option(help="Split to compare the two models on; empty for none.")] = "dev",
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions of each data set.")] = None,
    dev_limit: Annotated[int | None, typer.Option(min=1, help="The same for the split to compare on.")] = None,
    passes: Annotated[int, typer.Option(help="Stories of each question.")] = _D.passes,
    at_most: Annotated[int, typer.Option("--stories", help="Stories at most; 0 for all.")] = _D.stories,
    table_questions: Annotated[int, typer.Option(help="Questions about tables, at most.")] = _D.table_questions,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA matrices.")] = _D.rank,
    alpha: Annotated[float | None, typer.Option(help="Their scale; by default twice the rank.")] = None,
    first_layer: Annotated[int, typer.Option(help="First layer that learns, from 0.")] = _D.first_layer,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = _D.learning_rate,
    batch: Annotated[int, typer.Option(help="Stories of a step.")] = _D.batch,
    max_tokens: Annotated[int, typer.Option(help="Longest story.")] = _D.max_tokens,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = _D.seed,
) -> None:
    """Fine-tune a small chat model as the loop's critic; the result is a LoRA adapter."""
    settings = _settings(
        passes=passes, stories=at_most, table_questions=table_questions, rank=rank,
        alpha=2.0 * rank if alpha is None else alpha, first_layer=first_layer,
        learning_rate=learning_rate, batch=batch, max_tokens=max_tokens, seed=seed,
    )  # fmt: skip
    every = read_questions(data)
    questions = first_of_each([one for one in every if one.split == split], limit)
    if not questions:
        raise TrainingError(f"no question of split {split!r} (found: {sorted({one.split for one in every})})")
    dev = first_of_each([one for one in every if one.split == dev_split and dev_split != split], dev_limit)
    about_tables = read_questions(tables, split) if tables else []
    _refuse_merged(model)
    node_adapter = _node_adapter(encoder, encoder_adapter)
    base_sha256 = weights_hash(model)
    files = hashes([*data, *(tables or [])])
    revision = adapter_revision(node_adapter) if node_adapter else ""
    started_from = adapter_revision(start) if start else ""
    fingerprint = fingerprint_of(settings, base_sha256, revision, files, [split, limit, started_from])
    console = Console(stderr=True)
    out.mkdir(parents=True, exist_ok=True)
    if (out / RUN_FILE).is_file() and CriticRun.load(out).fingerprint == fingerprint:
        console.print(f"{out} holds this run already", markup=False, highlight=False)
        return
    run = _Run(settings, model, out, fingerprint, console, encoder or example_model(), node_adapter, start)
    searched = run.searched("train", questions, questions)
    told = stories(
        searched, about_tables, seed=seed, passes=settings.passes, n_tables=settings.table_questions
    )  # fmt: skip
    chat, fitted = run.fitted(told)
    scores = run.compared(chat, dev, every) if dev else None
    chat.save(out, model.name)
    result = record(
        fitted, settings, told,
        fingerprint=fingerprint, base=model.name, base_sha256=base_sha256, node_adapter=revision, files=files,
        started_from=started_from,
        questions=len(searched), dev=scores,
    )  # fmt: skip
    (out / CARD_PAGE).write_text(card_page(result), encoding="utf-8")
    result.save(out)
    run.clean()
    if scores:
        console.print(Markdown(scores_table(*scores)))
    console.print(f"adapter in {out}: serve it with CANOPY_CRITIC_ADAPTER={out} canopy up", markup=False)


@dataclass(frozen=True, slots=True)
class _Run:
    """The steps of one run, each of which leaves what it made in the run's folder until the run has ended."""

    settings: CriticSettings
    model: Path
    out: Path
    fingerprint: str
    console: Console
    encoder: Path
    node_adapter: Path | None
    start: Path | None

    def searched(self, name: str, questions: Sequence[Question], pool: Sequence[Question]) -> list[Searched]:
        """What the states of questions are made of; searched once and kept."""
        file = self._file(name)
        if file.is_file():
            return load(file)
        with _bar(self.console, f"searching for {name}", len(questions)) as advance:
            encoder = self._encoder()
            found = search_all(
                questions, encoder, Pool(encoder, items_of(pool)), seed=self.settings.seed, advance=advance
            )
        save(file, found)
        return found

    def fitted(self, told: Sequence[Any]) -> tuple[ChatModel, Fitted]:
        """The model after its training."""
        settings = self.settings
        chat = ChatModel(
            self.model,
            rank=settings.rank,
            alpha=settings.alpha,
            first_layer=settings.first_layer,
            start=self.start,
            seed=settings.seed,
        )
        with Bar(*_COLUMNS, console=self.console) as bar:
            task = bar.add_task("reading", total=None)

            def show(progress: Progress) -> None:
                text = f"loss {progress.loss:.3f}"
                bar.update(task, description=text, total=progress.steps, completed=progress.step)

            return chat, fit(chat, settings, told, state_folder=self.out, fingerprint=self.fingerprint, report=show)

    def compared(self, chat: ChatModel, dev: Sequence[Question], pool: Sequence[Question]) -> tuple[Scores, Scores]:
        """Figures on dev with the adapter, and of the model as it comes."""
        searched = self.searched("dev", dev, pool)
        encoder = self._encoder()
        corpus = Pool(encoder, items_of(pool))

        def speak(messages: Sequence[Message]) -> str:
            return chat.generate(messages, MAX_TOKENS)

        with _bar(self.console, "judging dev", 2 * len(searched)) as advance:
            tuned = scores_of(judge_all(speak, searched, encoder, corpus, advance))
            with chat.as_it_comes():
                base = scores_of(judge_all(speak, searched, encoder, corpus, advance))
        return tuned, base

    def clean(self) -> None:
        """Remove what only a run that goes on needs."""
        for file in (self.out / STATE_FILE, self._file("train"), self._file("dev")):
            file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.out / f"{name}-{self.fingerprint[:12]}.jsonl"

    def _encoder(self) -> Encoder:
        return Encoder(self.encoder, self.node_adapter, self.model / "tokenizer.json")


_COLUMNS: Final = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@contextmanager
def _bar(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    with Bar(*_COLUMNS, console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def _settings(**values: Any) -> CriticSettings:
    try:
        return msgspec.convert(values, CriticSettings)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        raise TrainingError(f"--{field.rstrip('`').replace('_', '-')}: {reason}") from None


def _refuse_merged(model: Path) -> None:
    """An adapter of a model that holds another one already would be merged into the wrong weights."""
    stamp = model / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") != "none":
        raise TrainingError(
            f"{model}: an adapter is merged into this model; convert one without "
            "(python local/canopy_local/critic_conversion.py FOLDER, in the critic's environment)"
        )


def _node_adapter(encoder: Path | None, given: Path | None) -> Path | None:
    if given == NO_ADAPTER:
        return None
    return adapter_for(encoder, given, None)
