"""``canopy demo``: the whole chain on this machine, with the example corpus."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from canopy_backend.errors import InvalidRequest
from canopy_backend.reading import UNREADABLE, told
from canopy_client.cli import commands, render
from canopy_client.cli.mounted import room
from canopy_client.settings import Settings

#: Paths from the project's root, as in the ids of the examples' gold spans.
CORPUS: Final = Path("examples/corpus")
QUESTIONS: Final = CORPUS / "demo.json"
CORPUS_FILES: Final = ("passages.jsonl", "tables.jsonl", "tables", "videos", "images")

#: Evidence tokens a prompt: what the small model on two cores reads in a few seconds.
BUDGET_TOKENS: Final = 1500


class DemoQuestion(msgspec.Struct, kw_only=True):
    """A question of the demo, with the answers that would be right."""

    question: str
    answers: list[str] = []


def demo() -> None:
    """Start the stack, index the example corpus, ask three questions of it, stop the stack."""
    run(Console())


def run(console: Console) -> None:
    """Bring the stack up, index, ask, take it down.

    Raises:
        InvalidRequest: The examples are not here: this runs from the project's root.
        CanopyError: The stack or a step failed.
    """
    questions = read_questions()
    stack = room("canopy_local.stack", "demo", "dev")
    local = room("canopy_local.settings", "demo", "dev").StackSettings.from_environment()

    def report(line: str) -> None:
        console.print(line, style="dim", markup=False, highlight=False)

    with stack.running(local, report=report) as status:
        settings = settings_of(status, local)
        report(f"indexing {CORPUS}")
        files = [CORPUS / name for name in CORPUS_FILES]
        render.ingestion(console, commands.index_files(settings, files, console))
        texts = [one.question for one in questions]
        answers = commands.run_questions(settings, texts, console, trace=True)
    console.print()
    for one, answer in zip(questions, answers, strict=True):
        console.print(f"{one.question}\n  {answer.text}\n  expected: {' or '.join(one.answers)}", markup=False)


def settings_of(status: Any, local: Any) -> Settings:
    """The client's settings for a running stack."""
    host = "127.0.0.1"
    ports = {server.name: server.ports["grpc"] for server in status.servers}
    settings = Settings.load(
        {
            "url": f"{host}:{ports['evidence']}",
            "critic_url": f"{host}:{ports['critic']}",
            "home": local.home,
            "model_folder": local.critic_model,
            "milvus_uri": os.environ.get("MILVUS_URI") or status.milvus_uri,
        }
    )
    # Of its own name, so that the demo's items and a user's do not mix.
    return replace(settings, corpus="demo", budget_tokens=settings.budget_tokens or BUDGET_TOKENS)


def read_questions() -> list[DemoQuestion]:
    """The demo's questions.

    Raises:
        InvalidRequest: The file is not here, or is of another form.
    """
    try:
        return msgspec.json.decode(QUESTIONS.read_bytes(), type=list[DemoQuestion])
    except FileNotFoundError:
        raise InvalidRequest(f"{QUESTIONS} is not here: run the demo from the project's root") from None
    except UNREADABLE as error:
        raise InvalidRequest(f"{QUESTIONS}: {told(error)}") from None
