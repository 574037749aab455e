"""``python -m canopy_export.tensorrt.build``: plans for this machine's GPU, inside the container that serves them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from canopy_backend.errors import CanopyError, ExportError
from canopy_backend.manifest import file_sha256
from canopy_export.tensorrt.plans import PlanCard, compute_capability, graph_hashes

#: Name of the plan that Triton looks for.
PLAN_FILE: Final = "model.plan"


def build(
    graph: Annotated[Path, typer.Argument(help="ONNX file.")],
    folder: Annotated[Path, typer.Argument(help="Version folder of the model, for instance query_encoder/1.")],
    cache: Annotated[Path, typer.Option(help="Folder of timing caches.")] = Path(".tensorrt-cache"),
) -> None:
    """Build a plan with all profiles of its graph, unless the one that is there was built from the same."""
    console = Console(soft_wrap=True)
    try:
        console.print(build_plan(graph, folder, cache), markup=False)
    except CanopyError as error:
        console.print(f"error: {error}", markup=False)
        raise typer.Exit(1) from None


def build_plan(graph: Path, folder: Path, cache: Path) -> str:
    """Build a plan, its description and the timing cache of this TensorRT and GPU.

    Args:
        graph: The ONNX file.
        folder: Where the plan goes.
        cache: Folder of timing caches, one for each TensorRT and compute capability.

    Returns:
        A line about what was done.

    Raises:
        ExportError: This is not the container's TensorRT, there is no GPU, or the build fails.
    """
    from canopy_export.tensorrt.bindings import RTX
    from canopy_export.tensorrt.builder import build_engine, version

    if RTX:
        raise ExportError("TensorRT for RTX is installed, whose engines Triton cannot load: build in the container")
    capability = compute_capability()
    if is_current(graph, folder, tensorrt=version(), capability=capability):
        return f"{folder / PLAN_FILE} is up to date"
    timing = cache / f"timing-{version()}-{capability}.cache"
    engine = build_engine(graph, timing=timing.read_bytes() if timing.is_file() else b"")
    folder.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    _write(timing, engine.timing)
    _write(folder / PLAN_FILE, engine.plan)
    PlanCard(
        onnx=graph_hashes(graph),
        plan=file_sha256(folder / PLAN_FILE),
        tensorrt=version(),
        capability=capability,
        profiles={profile.name: profile.shapes for profile in engine.profiles},
    ).save(folder)
    return f"{folder / PLAN_FILE}: {len(engine.plan) / 1e6:.0f} MB in {engine.seconds:.0f} s"


def is_current(graph: Path, folder: Path, *, tensorrt: str, capability: str) -> bool:
    """Whether a folder's plan was built from this graph, with this TensorRT, for this kind of GPU."""
    try:
        card = PlanCard.load(folder)
        card.require(folder / PLAN_FILE, tensorrt=tensorrt, capability=capability)
    except ExportError:
        return False
    return card.made_from(graph)


def _write(file: Path, content: bytes) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, file)


if __name__ == "__main__":
    typer.run(build)
