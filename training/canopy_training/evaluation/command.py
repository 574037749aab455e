"""``canopy evaluate``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from canopy_backend.errors import TrainingError
from canopy_backend.manifest import NodeEncoding
from canopy_client.settings import Settings
from canopy_export.example import EXAMPLE_NAME, example_model
from canopy_training.data import first_of_each, read_questions
from canopy_training.evaluation.figures import draw
from canopy_training.evaluation.report import REPORT_FILE, write
from canopy_training.evaluation.run import Watch, run_evaluation
from canopy_training.evaluation.tables import markdown
from canopy_training.evaluation.vectors import VectorSource

TABLE_FILE: Final = "evaluation.md"


def evaluate(
    data: Annotated[list[Path], typer.Option(help="Data file; may be given several times.")],
    out: Annotated[Path, typer.Option(help="Folder for evaluation.json, evaluation.md and the figures.")],
    split: Annotated[str, typer.Option(help="Split to evaluate; empty for all questions.")] = "dev",
    base: Annotated[
        Path | None,
        typer.Option(envvar="CANOPY_MODEL", help="sentence-transformers folder; by default all-MiniLM-L6-v2."),
    ] = None,
    adapter: Annotated[Path | None, typer.Option(help="LoRA adapter folder of the node encoder.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="HOST:PORT of a running evidence server, to evaluate it.")
    ] = None,
    node_encoding: Annotated[
        str | None, typer.Option(help="separate or contextual; by default as the adapter was trained, else separate.")
    ] = None,
    branching: Annotated[
        int | None, typer.Option(min=2, help="Most children of a node; by default as the adapter was trained, else 2.")
    ] = None,
    reader_tokenizer: Annotated[
        Path | None,
        typer.Option(
            envvar="CANOPY_READER_TOKENIZER",
            help="tokenizer.json of the evidence's reader; by default the local stack's model's, else the encoder's.",
        ),
    ] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen/--no-frozen", help="Also evaluate the base model without the adapter.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions of each data set.")] = None,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Encode in bfloat16: faster on some machines, less exact.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure what the node encoder decides on annotated questions, with its adapter and without."""
    questions = first_of_each(read_questions(data, split or None), limit)
    sources = _sources(base, adapter, endpoint, node_encoding, branching, reader_tokenizer, frozen, bf16)
    report = run_evaluation(
        questions,
        sources,
        files=data,
        split=split or None,
        command=shlex.join(["canopy", *sys.argv[1:]]),
        seed=seed,
        watch=_watch(Console(stderr=True, quiet=as_json)),
    )
    out.mkdir(parents=True, exist_ok=True)
    report.save(out)
    page = markdown(report)
    write(out / TABLE_FILE, page.encode())
    draw(report, out)
    if as_json:
        typer.echo((out / REPORT_FILE).read_text(encoding="utf-8"))
    else:
        Console(soft_wrap=True).print(page, markup=False, highlight=False)


def _sources(
    base: Path | None,
    adapter: Path | None,
    endpoint: str | None,
    node_encoding: str | None,
    branching: int | None,
    reader_tokenizer: Path | None,
    frozen: bool,
    bf16: bool,
) -> list[VectorSource]:
    """The encoders that are asked for, the frozen one first."""
    if adapter is not None and endpoint is not None:
        raise TrainingError("give --adapter or --endpoint: a server's adapter is merged into its encoder already")
    if endpoint is not None:
        from canopy_training.evaluation.endpoint import EndpointSource

        return [EndpointSource(endpoint)]
    from canopy_training.evaluation.local import LocalSource, Setup, settle

    name = None if base else EXAMPLE_NAME
    base = base or example_model()
    encoding, children = settle(base, adapter, _node_encoding(node_encoding), branching)
    reader = reader_tokenizer or _reader_tokenizer(base)
    adapters = [None, adapter] if adapter is not None and frozen else [adapter]
    return [
        LocalSource(Setup(base, reader, one, encoding, children, precision="bf16" if bf16 else "fp32", model_name=name))
        for one in adapters
    ]


def _node_encoding(value: str | None) -> NodeEncoding | None:
    if value in (None, "separate", "contextual"):
        return value  # type: ignore[return-value]
    raise TrainingError(f"--node-encoding {value!r}: expected separate or contextual")


def _reader_tokenizer(base: Path) -> Path:
    """The tokenizer of the local stack's language model where it is set up, else the encoder's own."""
    folder = Settings.load().model_files()
    known = [folder / "tokenizer.json"] if folder is not None else []
    return next((file for file in known if file.is_file()), base / "tokenizer.json")


def _watch(console: Console) -> Watch:
    @contextmanager
    def watch(name: str, total: int) -> Iterator[Callable[[int], None]]:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(f"{name}: items", total=total)
            yield lambda done: bar.advance(task, done)

    return watch
