"""``canopy view``: a trace as a page."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from canopy_backend.errors import InvalidRequest
from canopy_client import trace as trace_file
from canopy_client.cli.commands import print_json
from canopy_client.cli.options import AsJson
from canopy_client.view import page, pictures


def view(
    trace: Annotated[Path, typer.Argument(help="A trace file, as 'canopy ask --trace' writes it.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page; beside the trace if not given.")] = None,
    images: Annotated[Path | None, typer.Option("--images", help="Show pictures from files under this folder.")] = None,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Make a page of a trace: every round, verdict and decision, to be replayed. One file, without a network."""
    path = out or trace.with_suffix(".html")
    if path.exists() and trace.exists() and path.samefile(trace):
        raise InvalidRequest(f"--out: {path} is the trace itself")
    try:
        content = trace_file.read(trace)
        text = page(content, pictures(content, images) if images else None)
    except InvalidRequest as error:
        told = str(error)
        raise InvalidRequest(told if told.startswith("trace ") else f"trace {str(trace)!r}, {told}") from None
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)
    if as_json:
        print_json({"page": str(path), "bytes": path.stat().st_size})
    else:
        Console().print(f"page: {path}", soft_wrap=True, markup=False, highlight=False)
    if browser and has_screen():
        webbrowser.open(path.resolve().as_uri())


def has_screen() -> bool:
    """Whether a browser would have somewhere to show a page: elsewhere one in the terminal would take it over."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
