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


#: Options that only one of the two evaluations has.
_ENCODER_ONLY: Final = (
    "base",
    "adapter",
    "endpoint",
    "node_encoding",
    "branching",
    "reader_tokenizer",
    "frozen",
    "bf16",
)
_LOOP_ONLY: Final = ("pool", "arm", "llm", "in_flight", "resume")


def evaluate(
    context: typer.Context,
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
    loop: Annotated[
        bool, typer.Option("--loop", help="Evaluate the whole loop instead, with the servers that canopy ask uses.")
    ] = False,
    pool: Annotated[
        list[Path] | None, typer.Option(help="With --loop: data file whose items alone join the corpus; repeatable.")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="With --loop: arms by name or pattern, such as 'single-*'; repeatable.")
    ] = None,
    llm: Annotated[bool, typer.Option("--llm/--no-llm", help="With --loop: ask the language model.")] = True,
    in_flight: Annotated[int, typer.Option(min=1, help="With --loop: most questions at a time.")] = 8,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --loop: take arms that a run under equal conditions finished.")
    ] = False,
) -> None:
    """Measure what the node encoder decides on annotated questions, with its adapter and without.

    With --loop: what the whole loop finds, over the pooled items of the data files.
    """
    _refuse_others(context, loop)
    if loop:
        # Its servers' clients are imported for it alone.
        from canopy_training.loop import command as whole

        request = whole.LoopRequest(
            data=data,
            pool=pool or (),
            split=split or None,
            limit=limit,
            arms=arm or (),
            model=llm,
            in_flight=in_flight,
            resume=resume,
            seed=seed,
            command=shlex.join(["canopy", *sys.argv[1:]]),
        )
        whole.evaluate_loop(request, Settings.load(), out, Console(stderr=True, quiet=as_json))
        _tell(out / whole.REPORT_FILE, out / whole.TABLE_FILE, as_json)
        return
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
    _tell(out / REPORT_FILE, out / TABLE_FILE, as_json)


def _tell(report: Path, page: Path, as_json: bool) -> None:
    """Print what was written: the report for a program, the page for a person."""
    if as_json:
        typer.echo(report.read_text(encoding="utf-8"))
    else:
        Console(soft_wrap=True).print(page.read_text(encoding="utf-8"), markup=False, highlight=False)


def _refuse_others(context: typer.Context, loop: bool) -> None:
    """Refuse options of the other evaluation that were typed; variables of the environment may serve both.

    Raises:
        TrainingError: There is one; names it.
    """
    for name in _ENCODER_ONLY if loop else _LOOP_ONLY:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            if loop:
                raise TrainingError(f"{flag} does not apply to --loop, which asks the running servers (canopy config)")
            raise TrainingError(f"{flag} applies to --loop only")


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
