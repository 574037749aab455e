"""The command group: its global options, and how errors are told."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console

from canopy_backend.errors import CanopyError, DeadlineExceeded, EncoderMismatch, LimitExceeded, ServerUnavailable
from canopy_client import logs
from canopy_client.cli import commands, demo, limits, probe, render, view
from canopy_client.cli.mounted import mount
from canopy_client.logs import LogFormat, LogLevel

_HINTS: tuple[tuple[type[CanopyError], str], ...] = (
    (ServerUnavailable, "start the local stack with 'canopy up', or say where the servers are (canopy config)"),
    (DeadlineExceeded, "give it more time with CANOPY_DEADLINE_S or CANOPY_ANSWER_DEADLINE_S"),
    (EncoderMismatch, "index again with the encoder that the server runs, under another --corpus name"),
    (LimitExceeded, "make it smaller, or raise the limit in the server's configuration"),
)


class Group(typer.core.TyperGroup):
    """Commands whose errors are one line with a way out, unless ``--debug`` asks for everything."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error ends it with exit code 1."""
        try:
            return super().invoke(ctx)
        except (CanopyError, OSError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            tell(error)
            raise typer.Exit(1) from None
        except Exception as error:
            # The parser's own exceptions carry exit codes and usage; they are told by the group's base.
            if ctx.params.get("debug") or type(error).__module__.startswith(("typer", "click")):
                raise
            tell(CanopyError(f"unexpected {type(error).__name__}: {error}; canopy --debug shows where"))
            raise typer.Exit(1) from None


def tell(error: BaseException) -> None:
    """One line on standard error."""
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")
    text = render.visible(" ".join(str(error).split())) or type(error).__name__
    line = f"error: {text}; {hint}" if hint else f"error: {text}"
    Console(stderr=True, soft_wrap=True, highlight=False).print(line, markup=False)


def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show logs, and tracebacks of errors.")] = False,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="CANOPY_LOG_LEVEL", help="Lowest level of the log's lines.", show_envvar=True)
    ] = "error",
    log_format: Annotated[
        LogFormat, typer.Option(envvar="CANOPY_LOG_FORMAT", help="Lines of text, or of JSON.", show_envvar=True)
    ] = "text",
) -> None:
    """Hierarchical evidence for retrieval-augmented generation."""
    logs.configure("debug" if debug else log_level, log_format)


def build() -> typer.Typer:
    """The whole command."""
    app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    app.command("index")(commands.index)
    app.command("ask")(commands.ask)
    app.command("compress")(commands.compress)
    app.command("demo")(demo.demo)
    app.command("view")(view.view)
    app.command("config")(commands.config)
    app.command("limits")(limits.limits)
    app.command("probe")(probe.probe)
    mount(app)
    return app


def main() -> None:
    """Entry point."""
    build()(prog_name="canopy")
