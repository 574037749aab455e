"""A Qwen3-VL with its pixels into a model repository: the graphs of both encoders and the vision tower, as served."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import ExportError
from canopy_backend.manifest import MANIFEST_FILE, Precision, VisionManifest, file_sha256
from canopy_backend.qwen3vl.settings import SETTINGS_FILE
from canopy_export.qwen3vl.folder import vision_settings
from canopy_export.source import OPSET, Source

_GRAPH: Final = "1/model.onnx"
_TOOLS: Final = ("torch", "transformers", "onnx")
#: Counts up when the tower's graph or its settings change in a way that existing files should be replaced. Since 2 its
#: patches are levels, uint8.
_VERSION: Final = "2"
#: The same for the graphs of encoders that see pixels. Since 3 their precision is that of the files themselves.
GRAPH_VERSION: Final = "3"


def vision_wanted(source: Source, precision: Precision) -> VisionManifest:
    """The manifest, without files, of the vision tower that an export of this model makes."""
    return VisionManifest(
        model=source.name,
        model_revision=source.revision,
        hidden=vision_settings(source.path).hidden,
        precision=precision,
        versions={"graph": _VERSION, "opset": str(OPSET), **{tool: version(tool) for tool in _TOOLS}},
    )


def write_pixel_graph(source: Source, adapter: Path | None, file: Path, *, node: bool, precision: Precision) -> None:
    """Write the graph of an encoder that sees pixels, through its gate.

    Args:
        source: The model.
        adapter: LoRA adapter folder, merged into the language backbone.
        file: The ONNX file.
        node: Whether it is the node encoder's.
        precision: Types of the file's weights and products.

    Raises:
        ExportError: The model or the adapter cannot be used, or the gate did not pass.
    """
    from canopy_export.qwen3vl.adapter import merge_language_adapter
    from canopy_export.qwen3vl.build import load_model
    from canopy_export.qwen3vl.served import PixelNodeGraph, PixelQueryGraph, export_pixel_graph

    model = load_model(source.path)
    settings = vision_settings(source.path)
    if adapter is not None:
        merge_language_adapter(model, adapter, settings)
    graph = (PixelNodeGraph if node else PixelQueryGraph)(model.language_model).eval()
    export_pixel_graph(graph, file, settings, precision)


def export_vision(
    source: Source, folder: Path, wanted: VisionManifest, report: Callable[[str], None]
) -> tuple[VisionManifest, bool]:
    """Put the vision tower into its folder of a repository, unless it is there already.

    Args:
        source: The model.
        folder: The folder; made if missing.
        wanted: From :func:`vision_wanted`.
        report: Called with a line about each step.

    Returns:
        Its manifest, and whether it was built now.

    Raises:
        ExportError: The model cannot be used, or the gate did not pass.
    """
    if (current := _current(folder, wanted)) is not None:
        report(f"{folder.name} is up to date")
        return current, False
    from canopy_export.onnx_write import data_file
    from canopy_export.qwen3vl.build import load_model, write_tower

    report(f"exporting {folder.name} from {source.name}")
    graph_file = folder / _GRAPH
    graph_file.parent.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    settings = vision_settings(source.path)
    with tempfile.TemporaryDirectory(dir=graph_file.parent, prefix=".gate-") as gate:
        made = Path(gate) / graph_file.name
        write_tower(load_model(source.path).visual, made, settings, wanted.precision)
        data_file(graph_file).unlink(missing_ok=True)
        for file in (data_file(made), made):
            if file.is_file():
                os.replace(file, graph_file.parent / file.name)
    settings.save(folder)
    names = [file.relative_to(folder).as_posix() for file in (graph_file, data_file(graph_file)) if file.is_file()]
    files = {name: file_sha256(folder / name) for name in (*names, SETTINGS_FILE)}
    manifest = msgspec.structs.replace(wanted, files=files)
    manifest.save(folder / MANIFEST_FILE)
    return manifest, True


def _current(folder: Path, wanted: VisionManifest) -> VisionManifest | None:
    try:
        found = VisionManifest.load(folder / MANIFEST_FILE)
        found.verify(folder)
    except ExportError:
        return None
    same = msgspec.structs.replace(found, files={}) == wanted
    return found if same and {_GRAPH, SETTINGS_FILE} <= set(found.files) else None
