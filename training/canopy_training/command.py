"""``canopy train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from canopy_backend.errors import TrainingError
from canopy_export.example import EXAMPLE_NAME, example_model
from canopy_export.source import Source, adapter_revision, node_encoding_of, read_source
from canopy_training.card import CARD_PAGE, card_page
from canopy_training.checkpoint import STATE_FILE
from canopy_training.data import Question, first_of_each, read_questions
from canopy_training.manifest import RUN_FILE, RunManifest, adapter_card, fingerprint_of, hashes, run_manifest
from canopy_training.settings import TrainSettings
from canopy_training.train import Progress, Trained
from canopy_training.train import train as run_training

_D: Final = TrainSettings()


def train(
    data: Annotated[list[Path], typer.Option(help="Data file; may be given several times.")],
    out: Annotated[Path, typer.Option(help="Folder of the adapter; a killed run goes on from it.")],
    base: Annotated[
        Path | None,
        typer.Option(envvar="CANOPY_MODEL", help="sentence-transformers folder; by default all-MiniLM-L6-v2."),
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="Adapter folder to start from; its base and node encoding must be this run's.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split to train on; empty for all questions.")] = "train",
    dev_split: Annotated[str, typer.Option(help="Split to check on; empty for none.")] = "dev",
    node_encoding: Annotated[str, typer.Option(help="separate or contextual.")] = _D.node_encoding,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = _D.epochs,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA matrices.")] = _D.rank,
    alpha: Annotated[float | None, typer.Option(help="Their scale; by default twice the rank.")] = None,
    dropout: Annotated[float, typer.Option(help="Dropout in front of them.")] = _D.dropout,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = _D.learning_rate,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = _D.weight_decay,
    scale: Annotated[float, typer.Option(help="Lambda of the loss.")] = _D.scale,
    gold_weight: Annotated[
        float, typer.Option(help="Weight of gold children in the loss; above 1 keeps more gold and more tokens.")
    ] = _D.gold_weight,
    step_tokens: Annotated[int, typer.Option(help="Tokens of a step on one process.")] = _D.step_tokens,
    branching: Annotated[int, typer.Option(help="Most children of a node.")] = _D.branching,
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = _D.precision,
    check_every: Annotated[int, typer.Option(help="Steps between two checks on dev.")] = _D.check_every,
    dev_instances: Annotated[int, typer.Option(help="Instances of dev in a check.")] = _D.dev_instances,
    seed: Annotated[int, typer.Option(help="Of data order, initialisation and dropout.")] = _D.seed,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions of each data set.")] = None,
) -> None:
    """Fine-tune the node encoder on gold evidence; the result is a LoRA adapter."""
    settings = _settings(
        node_encoding=node_encoding, epochs=epochs, rank=rank, alpha=2.0 * rank if alpha is None else alpha,
        dropout=dropout, learning_rate=learning_rate, weight_decay=weight_decay, scale=scale,
        gold_weight=gold_weight, step_tokens=step_tokens, branching=branching,
        precision=precision, check_every=check_every, dev_instances=dev_instances, seed=seed,
    )  # fmt: skip
    every = read_questions(data)
    questions = first_of_each([one for one in every if split in ("", one.split)], limit)
    if not questions:
        raise TrainingError(f"no question of split {split!r} (found: {sorted({one.split for one in every})})")
    held_out = dev_split if dev_split != split else ""
    dev = first_of_each([one for one in every if held_out and one.split == held_out], limit)
    source = read_source(base or example_model(), name=None if base else EXAMPLE_NAME)
    if start is not None:
        node_encoding_of(source, start, settings.node_encoding)
    started_from = adapter_revision(start) if start is not None else ""
    files, splits = hashes(data), (split, dev_split)
    fingerprint = fingerprint_of(settings, source, files, splits, limit, started_from)
    console = Console(stderr=True)
    out.mkdir(parents=True, exist_ok=True)
    if (out / RUN_FILE).is_file() and RunManifest.load(out).fingerprint == fingerprint:
        console.print(f"{out} holds this run already")
        return
    trained = _watched(console, source, settings, questions, dev, start, out, fingerprint)
    if not trained.main:
        return
    run = run_manifest(
        trained, settings, source,
        fingerprint=fingerprint, files=files, splits=splits, questions=questions, dev=dev, started_from=started_from,
    )  # fmt: skip
    trained.model.save(out, source.name)
    adapter_card(source, settings).save(out)
    (out / CARD_PAGE).write_text(card_page(run), encoding="utf-8")
    run.save(out)
    (out / STATE_FILE).unlink(missing_ok=True)
    for line in trained.tally.lines():
        console.print(line, markup=False, highlight=False)
    console.print(f"adapter in {out}: export it with canopy export --adapter {out}", markup=False, highlight=False)


def _settings(**values: Any) -> TrainSettings:
    try:
        return msgspec.convert(values, TrainSettings)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        raise TrainingError(f"--{field.rstrip('`').replace('_', '-')}: {reason}") from None


def _watched(
    console: Console,
    source: Source,
    settings: TrainSettings,
    questions: list[Question],
    dev: list[Question],
    start: Path | None,
    out: Path,
    fingerprint: str,
) -> Trained:
    """The run under a progress bar that shows the loss and the accuracy on dev."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("reading", total=None)

        def show(progress: Progress) -> None:
            dev_text = "" if progress.dev != progress.dev else f", dev {100 * progress.dev:.1f} %"
            description = f"loss {progress.loss:.3f}{dev_text}"
            bar.update(task, description=description, total=progress.steps, completed=progress.step)

        return run_training(
            source, settings, questions, dev, start=start, state_folder=out, fingerprint=fingerprint, report=show
        )
