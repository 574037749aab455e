"""``python -m canopy_export.tensorrt.build``: plans for this machine's GPU, inside the container that serves them.

Nothing of the export is imported here that needs torch: the container has TensorRT's bindings, and gets numpy, msgspec,
typer and rich.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from canopy_backend.errors import CanopyError, ExportError
from canopy_backend.manifest import MANIFEST_FILE, EncoderManifest, file_sha256
from canopy_backend.plan_card import PLAN_FILE, PlanCard, compute_capability, graph_hashes
from canopy_export.tensorrt.profiles import WINDOW

#: Folder of timing caches, one for each TensorRT and compute capability.
CACHE: Final = Path(".tensorrt-cache")
_GRAPH: Final = "1/model.onnx"
_VISION: Final = "vision_encoder"
_ROWS: Final = re.compile(r"^max_batch_size: (\d+)$", re.MULTILINE)
_PLATFORM: Final = re.compile(r"^platform: \"tensorrt_plan\"$", re.MULTILINE)


def build(
    source: Annotated[Path, typer.Argument(help="ONNX file, or a model repository with exported encoders.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Of a file: version folder of the model, for instance query_encoder/1.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Folder of timing caches.")] = CACHE,
) -> None:
    """Build plans with all profiles of their graphs, unless those that are there were built from the same."""
    console = Console(soft_wrap=True)
    try:
        if source.is_dir():
            build_repository(source, cache, report=lambda line: console.print(line, markup=False))
        elif folder is None:
            raise ExportError(f"{source}: an ONNX file needs the folder that its plan goes into")
        else:
            console.print(build_plan(source, folder, cache), markup=False)
    except CanopyError as error:
        console.print(f"error: {error}", markup=False)
        raise typer.Exit(1) from None


def build_repository(
    repository: Path, cache: Path = CACHE, *, report: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Build the plan of every model of a repository that Triton's TensorRT backend serves.

    Args:
        repository: The model repository, with exported graphs.
        cache: Folder of timing caches.
        report: Called with a line about each plan.

    Returns:
        The models, by name.

    Raises:
        ExportError: There is no such model, one has no graph, or as for :func:`build_plan`.
    """
    models = sorted(
        file.parent for file in repository.glob("*/config.pbtxt") if _PLATFORM.search(file.read_text(encoding="utf-8"))
    )
    if not models:
        raise ExportError(f"{repository}: no model for TensorRT here; export into it first")
    # A repository of encoders that read text alone has the tower's configuration and no tower.
    models = [model for model in models if model.name != _VISION or (model / _GRAPH).is_file()]
    if missing := [model.name for model in models if not (model / _GRAPH).is_file()]:
        raise ExportError(f"{repository}: {missing[0]} has no {_GRAPH}; run canopy export --profile tensorrt")
    for model in models:
        report(build_plan(model / _GRAPH, model / "1", cache))
    return [model.name for model in models]


def build_plan(graph: Path, folder: Path, cache: Path = CACHE) -> str:
    """Build a plan, its description and the timing cache of this TensorRT and GPU.

    The profiles of a graph in a model repository follow its encoder's window and its configuration's rows.

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
    window, rows = sizes_of(graph)
    if is_current(graph, folder, tensorrt=version(), capability=capability, rows=rows):
        return f"{folder / PLAN_FILE} is up to date"
    timing = cache / f"timing-{version()}-{capability}.cache"
    known = timing.read_bytes() if timing.is_file() else b""
    engine = build_engine(graph, window=window, rows=rows, timing=known)
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


def sizes_of(graph: Path) -> tuple[int, int | None]:
    """Window and rows of a graph: what its encoder's manifest and configuration say, where it has them.

    Raises:
        ExportError: One of the two files cannot be read.
    """
    encoder = graph.absolute().parent.parent
    window, rows = WINDOW, None
    if encoder.name == _VISION:  # its calls have patches, not rows of tokens
        return window, rows
    if (encoder / MANIFEST_FILE).is_file():
        window = EncoderManifest.load(encoder / MANIFEST_FILE).window
    config = encoder / "config.pbtxt"
    if config.is_file():
        found = _ROWS.search(config.read_text(encoding="utf-8"))
        if found is None or int(found[1]) < 1:
            raise ExportError(f"{config}: no max_batch_size of 1 or more; run canopy export --profile tensorrt")
        rows = int(found[1])
    return window, rows


def is_current(graph: Path, folder: Path, *, tensorrt: str, capability: str, rows: int | None = None) -> bool:
    """Whether a folder's plan was built from this graph, with this TensorRT, for this kind of GPU and so many rows."""
    try:
        card = PlanCard.load(folder)
        card.require(folder / PLAN_FILE, tensorrt=tensorrt, capability=capability)
    except ExportError:
        return False
    return card.made_from(graph) and (rows is None or card.rows() == rows)


def _write(file: Path, content: bytes) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, file)


if __name__ == "__main__":
    typer.run(build)
