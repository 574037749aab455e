"""``canopy up``, ``status`` and ``down``; the ``canopy`` command mounts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from canopy_local import stack
from canopy_local.locking import Report
from canopy_local.settings import StackSettings
from canopy_local.stack import ServerStatus, StackStatus


class Which(StrEnum):
    """Which servers a command is about."""

    all = "all"
    evidence = "evidence"
    critic = "critic"


_SERVERS: Final = {Which.all: stack.SERVERS, Which.evidence: ("evidence",), Which.critic: ("critic",)}

Home = Annotated[Path | None, typer.Option("--home", help="Environments, models, logs, state. [env: CANOPY_HOME]")]
Only = Annotated[Which, typer.Option("--only", help="Which servers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def up(home: Home = None, only: Only = Which.all, as_json: Json = False) -> None:
    """Start the evidence server and the critic server; what serves already is left alone.

    The first time this builds two environments from pinned packages and converts the critic's model.
    """
    settings = StackSettings.from_environment(home=home)
    with _progress(quiet=as_json) as report:
        seen = stack.up(settings, servers=_SERVERS[only], report=report)
    _show(seen, as_json)


def status(home: Home = None, only: Only = Which.all, as_json: Json = False) -> None:
    """Show what runs and whether it answers a real request; exit code 1 when something does not."""
    seen = stack.status(StackSettings.from_environment(home=home), servers=_SERVERS[only])
    _show(seen, as_json)
    if not seen.up:
        raise typer.Exit(1)


def down(home: Home = None, only: Only = Which.all, as_json: Json = False) -> None:
    """Stop what ``canopy up`` started, with every process of it."""
    settings = StackSettings.from_environment(home=home)
    with _progress(quiet=as_json) as report:
        stack.down(settings, servers=_SERVERS[only], report=report)
    _show(stack.status(settings, servers=_SERVERS[only]), as_json)


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (up, status, down):
        app.command()(command)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Report]:
    """A report that prints each finished step, and shows the one at work with a spinner, on standard error."""
    if quiet:
        yield stack.silent
        return
    console = Console(stderr=True)
    with console.status("looking") as spinner:

        def report(line: str) -> None:
            console.print(Text(line), soft_wrap=True)
            spinner.update(Text(line))

        yield report


def _show(seen: StackStatus, as_json: bool) -> None:
    console = Console()
    if as_json:
        payload = {"up": seen.up} | msgspec.to_builtins(seen)
        console.file.write(msgspec.json.encode(payload).decode() + "\n")
        return
    table = Table("server", "state", "canary", "gRPC", "HTTP", "metrics", "pid", "version", box=None)
    for server in seen.servers:
        table.add_row(
            server.name,
            _state(server),
            f"{server.canary.seconds:.2f} s" if server.canary.passed else Text(server.canary.error, style="red"),
            *(str(server.ports[purpose]) for purpose in ("grpc", "http", "metrics")),
            str(server.pid or ""),
            server.version,
        )
    console.print(table)
    console.print(Text(f"Milvus Lite: {seen.milvus_uri} (a file, opened by the client)"), soft_wrap=True)


def _state(server: ServerStatus) -> Text:
    if server.up:
        return Text("up", style="green")
    if server.alive:
        return Text("broken" if server.ready else "starting", style="red")
    return Text("down", style="dim")
