"""``python -m canopy_export.tensorrt.check``: does every graph compile for every GPU generation; needs no GPU.

TensorRT for RTX parses the files, infers shapes, takes the profiles and compiles. That proves nothing about speed or
numbers, and its engines are not for Triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from canopy_backend.errors import ExportError

#: Generations: Ampere of data centres and of workstations, Ada, Blackwell.
CAPABILITIES: Final = ("SM80", "SM86", "SM89", "SM120")


def check(
    graphs: Annotated[list[Path], typer.Argument(help="ONNX files.")],
    capability: Annotated[
        list[str] | None, typer.Option(help="Compute capability to compile for; may be repeated.")
    ] = None,
) -> None:
    """Compile ONNX graphs with all of their profiles, and print a line about each."""
    console = Console(soft_wrap=True)
    failed = 0
    for graph in graphs:
        for one in capability or CAPABILITIES:
            try:
                console.print(compile_line(graph, one), markup=False, highlight=False)
            except ExportError as error:
                failed += 1
                console.print(f"FAILED {one}: {error}", markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)


def compile_line(graph: Path, capability: str) -> str:
    """Compile a graph for one compute capability.

    Returns:
        A line of the log: file, capability, profiles, size, time and what TensorRT remarked.

    Raises:
        ExportError: TensorRT for RTX is not installed, or the graph does not compile.
    """
    from canopy_export.tensorrt.bindings import RTX
    from canopy_export.tensorrt.builder import build_engine, version

    if not RTX:
        raise ExportError("the container's TensorRT builds for its own GPU only: use canopy_export.tensorrt.build")
    engine = build_engine(graph, capabilities=[capability])
    profiles = ", ".join(profile.name for profile in engine.profiles)
    line = (
        f"{graph.name}  {capability}  profiles {profiles}  {len(engine.plan) / 1e6:.1f} MB  {engine.seconds:.1f} s  "
        f"TensorRT for RTX {version()}"
    )
    return "\n    warning: ".join([line, *engine.warnings])


if __name__ == "__main__":
    typer.run(check)
