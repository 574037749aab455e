"""Commands of rooms that a client-only installation may lack: listed always, imported when they run."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
import typer.main

from canopy_backend.errors import CanopyError


class Mounted(NamedTuple):
    """A module with a function of the command's name, its help, and the extra that brings its packages."""

    module: str
    help: str
    extra: str


MOUNTED: Final = {
    "up": Mounted("canopy_local.command", "Start the local stack: evidence server, critic server, Milvus Lite.", "dev"),
    "status": Mounted("canopy_local.command", "Show whether the local stack works.", "dev"),
    "down": Mounted("canopy_local.command", "Stop the local stack.", "dev"),
    "train": Mounted("canopy_training.command", "Fine-tune the node encoder on gold evidence.", "training"),
    "train-critic": Mounted(
        "canopy_training.critic.command", "Fine-tune a small chat model as the loop's critic.", "training"
    ),
    "blend": Mounted(
        "canopy_training.blend", "Blend trained adapters, or pull one back toward the base model.", "training"
    ),
    "evaluate": Mounted(
        "canopy_training.evaluation.command", "Measure a node encoder on annotated questions.", "training"
    ),
    "export": Mounted("canopy_export.command", "Export an encoder to ONNX.", "export"),
}


def room(module: str, needed_by: str, extra: str) -> Any:
    """Import a module of a room above this one, when it is used and not before.

    Raises:
        CanopyError: Its packages are not installed; names the extra that brings them.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise CanopyError(
            f"canopy {needed_by} needs {error.name!r}, which is not installed: pip install 'canopy-triton[{extra}]'"
        ) from None


def mount(app: typer.Typer) -> None:
    """Add the mounted commands; each passes its arguments on, ``--help`` included."""
    for name, mounted in MOUNTED.items():
        _mount(app, name, mounted)


def _mount(app: typer.Typer, name: str, mounted: Mounted) -> None:
    # Everything behind the name belongs to the mounted command, whose options are not known here.
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}

    @app.command(name, help=mounted.help, add_help_option=False, context_settings=settings)
    def run(context: typer.Context) -> None:
        inner = typer.Typer(add_completion=False)
        inner.command(name)(getattr(room(mounted.module, name, mounted.extra), name.replace("-", "_")))
        code = typer.main.get_command(inner)(args=context.args, prog_name=f"canopy {name}", standalone_mode=False)
        if isinstance(code, int) and code:
            raise typer.Exit(code)
