"""The commands of the client: parse, call, show."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from canopy_backend.errors import CriticError, InvalidRequest
from canopy_backend.items import Item, without_pictures
from canopy_backend.sources import read_items
from canopy_client import trace as trace_file
from canopy_client.answer import Answer
from canopy_client.cli import render
from canopy_client.cli.options import LOOP, MODEL, PIXELS, SERVER, STORE, TRACING, AsJson, takes
from canopy_client.clients import CanopyClient
from canopy_client.deadline import Deadline
from canopy_client.events import Answered
from canopy_client.fetch import FetchRules, fill_pictures
from canopy_client.ingestion import IngestionReport, ingest
from canopy_client.session import open_session
from canopy_client.settings import Settings
from canopy_milvus import Corpus

Files = Annotated[
    list[Path], typer.Argument(help="Files and folders: JSONL, text, Markdown, CSV, TSV, WebVTT, SRT, images, clips.")
]


def print_json(value: Any) -> None:
    """JSON on standard output, indented, without colours that a program would trip over."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


@takes(*SERVER, *STORE, *PIXELS, *TRACING)
def index(settings: Settings, files: Files, as_json: AsJson = False) -> None:
    """Index items of files; those that are stored unchanged are skipped, so it is safe to run again."""
    report = index_files(settings, files, Console(stderr=True, quiet=as_json))
    if as_json:
        print_json(report)
    else:
        render.ingestion(Console(), report)


def index_files(settings: Settings, files: list[Path], console: Console) -> IngestionReport:
    """Index files with a progress bar."""
    require_files(files)
    with open_client(settings) as client, open_corpus(settings, client) as corpus, render.progress(console) as advance:
        return ingest(client, corpus, items_of(settings, files, client), progress=advance)


def require_files(files: list[Path]) -> None:
    """Refuse a path that is not there before any server is asked: the most common mistake is a mistyped one."""
    if missing := [str(path) for path in files if not path.exists()]:
        raise InvalidRequest(f"{missing[0]}: no such file")


def items_of(settings: Settings, files: list[Path], client: CanopyClient) -> Iterator[Item]:
    """The items of files, with their pixels where the settings say so, or say nothing and the server's encoder sees."""
    pixels = client.sees_pixels() if settings.pixels is None else settings.pixels
    items = read_items(files, pixels=pixels)
    if not pixels:
        return map(without_pictures, items)
    return fill_pictures(items, FetchRules.of_hosts(settings.picture_hosts, allow_http=settings.picture_http))


@takes(*SERVER, *STORE, *MODEL, *LOOP, *TRACING)
def ask(
    settings: Settings,
    question: Annotated[str, typer.Argument(help="What to ask of the indexed items.")],
    trace: Annotated[bool, typer.Option("--trace", help="Show every item's tree, and write a trace file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Answer a question from the indexed items: retrieve, compress, judge, search for what is missing, answer."""
    console = Console(quiet=as_json)
    (answer,) = run_questions(settings, [question], console, trace=trace)
    if as_json:
        print_json(answer)
    if answer.stop == "reader_failed":
        # The evidence was shown; a script must not take what is left of the answer for one.
        raise CriticError(answer.error)


@takes(*SERVER, *PIXELS, *TRACING)
def compress(
    settings: Settings,
    files: Files,
    query: Annotated[str, typer.Option("--query", "-q", help="What the items were retrieved for.")],
    keep_tables_whole: Annotated[bool, typer.Option(help="Keep all rows of tables.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show every item's tree.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep of each item of files the regions that answer a query."""
    require_files(files)
    with open_client(settings) as client:
        items = list(items_of(settings, files, client))
        evidence = client.compress(query, items, keep_tables_whole=keep_tables_whole, trace=trace)
    if as_json:
        print_json(evidence)
    else:
        render.evidence_list(Console(), evidence)


@takes(*SERVER, *STORE, *MODEL, *LOOP, *TRACING)
def config(settings: Settings, as_json: AsJson = False) -> None:
    """Show every setting: flag, variable, value, meaning."""
    if as_json:
        print_json(settings.shown())
    else:
        render.settings(Console(), settings)


def run_questions(settings: Settings, questions: list[str], console: Console, *, trace: bool) -> list[Answer]:
    """Ask questions one after the other, show each step, and write the trace where asked for."""

    async def run() -> tuple[list[Answer], str]:
        answers: list[Answer] = []
        async with open_session(settings, trace=trace) as session:
            for question in questions:
                render.question(console, question)
                deadline_s = settings.answer_deadline_s
                async for event in session.orchestrator.events(question, deadline_s=deadline_s):
                    render.event(console, event)
                    if isinstance(event, Answered):
                        answers.append(event.answer)
            return answers, session.llm.name

    answers, model = asyncio.run(run())
    if trace:
        path = trace_file.write(settings.home / "traces", answers, model=model, settings=settings.shown())
        console.print(f"trace: {path}", soft_wrap=True, markup=False)
        console.print("canopy view makes a page of it", style="dim")
    return answers


def open_client(settings: Settings) -> CanopyClient:
    """The evidence server's client."""
    return CanopyClient(settings.url, deadline_s=settings.deadline_s, tls=settings.tls_options())


def open_corpus(settings: Settings, client: CanopyClient) -> Corpus:
    """The corpus for writing, made when absent, of the encoder that the server runs."""
    deadline = Deadline.after(settings.deadline_s)
    encoder = client.encoder(deadline_s=deadline.timeout_s())
    return Corpus.open(
        settings.milvus(),
        settings.corpus,
        revision=encoder.revision,
        dimension=encoder.dimension,
        token=settings.milvus_token or None,
        create=True,
    )
