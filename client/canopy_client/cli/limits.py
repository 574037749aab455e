"""``canopy limits``: what a server takes, and what its encoder sees."""

from __future__ import annotations

from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from canopy_client.cli.options import SERVER, AsJson, takes
from canopy_client.clients import CanopyClient
from canopy_client.settings import Settings


@takes(*SERVER)
def limits(settings: Settings, as_json: AsJson = False) -> None:
    """Show the limits that the evidence server publishes, and whether its encoder sees pictures."""
    with CanopyClient(settings.url, deadline_s=settings.deadline_s, tls=settings.tls_options()) as client:
        shown: dict[str, Any] = {"pixels": client.sees_pixels(), **msgspec.structs.asdict(client.limits())}
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))
        return
    table = Table("limit", "value", box=None, pad_edge=False, header_style="bold")
    for name, value in shown.items():
        table.add_row(name, str(value).lower() if isinstance(value, bool) else f"{value:,}")
    console = Console()
    console.print(table)
    sees = "sees the pictures of items" if shown["pixels"] else "reads text alone: captions and transcripts"
    console.print(f"the encoder {sees}", style="dim")
