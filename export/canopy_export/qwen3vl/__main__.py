"""``python -m canopy_export.qwen3vl``: write the graphs of a model, or a model with random weights to try that on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from canopy_backend.errors import CanopyError, ExportError
from canopy_backend.manifest import Precision
from canopy_export.qwen3vl.build import export_graphs
from canopy_export.qwen3vl.tiny import SIZES, random_qwen3vl

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command()
def graphs(
    model: Annotated[Path, typer.Argument(help="Folder of a Qwen3-VL embedding model.")],
    out: Annotated[Path, typer.Argument(help="Folder to write into.")],
    adapter: Annotated[Path | None, typer.Option(help="LoRA adapter, merged into the language backbone.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "bf16",
    dimension: Annotated[int | None, typer.Option(help="Numbers of a vector that are kept; by default all.")] = None,
    language_only: Annotated[bool, typer.Option(help="Leave out the vision graph.")] = False,
) -> None:
    """Write the language and the vision graph as ONNX, each through its gate."""
    console = Console()
    try:
        manifest = export_graphs(
            model,
            out,
            adapter=adapter,
            precision=_precision(precision),
            dimension=dimension,
            language_only=language_only,
            report=console.print,
        )
    except CanopyError as error:
        console.print(f"error: {error}", markup=False)
        raise typer.Exit(1) from None
    console.print(f"{manifest.model}: {manifest.revision} ({manifest.precision}, {manifest.dimension} numbers)")


@app.command("random")
def random_folder(
    folder: Annotated[Path, typer.Argument(help="Folder to write into.")],
    size: Annotated[str, typer.Option(help=f"{' or '.join(SIZES)}: the sizes of the weights.")] = "tiny",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Write a model with random weights and a small tokenizer."""
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r}: expected one of {', '.join(SIZES)}")
    random_qwen3vl(folder, seed, size)
    Console().print(f"{folder}: a random Qwen3-VL, size {size}")


def _precision(value: str) -> Precision:
    if value not in get_args(Precision):
        raise ExportError(f"precision {value!r}: expected fp32, fp16 or bf16")
    return value  # type: ignore[return-value]


if __name__ == "__main__":
    app()
