"""Encoders into a model repository: graphs, tokenizers, manifests, configurations; nothing is built twice."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from canopy_backend.errors import ExportError
from canopy_backend.manifest import (
    MANIFEST_FILE,
    EncoderManifest,
    NodeEncoding,
    Precision,
    VisionManifest,
    file_sha256,
)
from canopy_backend.templates import TEMPLATE_HASH
from canopy_backend.tokenization import TokenCounter
from canopy_export.configs import fit, write_configs
from canopy_export.qwen3vl.repository import GRAPH_VERSION as PIXEL_GRAPH_VERSION
from canopy_export.qwen3vl.repository import export_vision, vision_wanted, write_pixel_graph
from canopy_export.source import OPSET, Source, adapter_revision, node_encoding_of, read_source
from canopy_export.vision_config import Sight

Profile: TypeAlias = Literal["embedded", "onnx", "tensorrt"]

QUERY_ENCODER: Final = "query_encoder"
NODE_ENCODER: Final = "node_encoder"
VISION_ENCODER: Final = "vision_encoder"
GRAPH_FILE: Final = "1/model.onnx"
#: The graph's weights, where they are too large for one file.
DATA_FILE: Final = "1/model.onnx.data"
TOKENIZER_FILE: Final = "tokenizer.json"
READER_TOKENIZER: Final = "hierarchy/reader_tokenizer.json"
#: Counts up when the graphs change in a way that an existing file should be replaced.
GRAPH_VERSION: Final = "2"
#: Precisions of the node encoder that a profile can serve; the first is what it gets where none is asked for. The query
#: encoder of a model of text is float32 in all of them.
_PRECISIONS: Final[dict[tuple[Profile, NodeEncoding], tuple[Precision, ...]]] = {
    # Pooled from one pass, nodes of an item share most of their rounding: at least 99.5 % of the decisions stay.
    ("embedded", "contextual"): ("bf16", "fp32"),
    ("embedded", "separate"): ("fp32", "bf16"),
    ("onnx", "contextual"): ("fp32",),
    ("onnx", "separate"): ("fp32",),
    ("tensorrt", "contextual"): ("fp32",),
    ("tensorrt", "separate"): ("fp32",),
}
#: The same for encoders that see pixels, both of them and the vision tower. The graphs themselves have these types, so
#: that TensorRT, whose networks are strongly typed, builds them as they are; ONNX Runtime has no bfloat16 on a CPU.
_PIXEL_PRECISIONS: Final[dict[Profile, tuple[Precision, ...]]] = {
    "embedded": ("fp32", "bf16", "fp16"),
    "onnx": ("fp32", "fp16"),
    "tensorrt": ("fp32", "bf16", "fp16"),
}
_TOOLS: Final = ("torch", "transformers", "onnx", "peft")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export left in the repository.

    Attributes:
        query: Manifest of the query encoder.
        node: Manifest of the node encoder.
        built: Encoders that were built now; those that were up to date are not in it.
        vision: Manifest of the vision tower; ``None`` where the encoders do not see pixels.
    """

    query: EncoderManifest
    node: EncoderManifest
    built: tuple[str, ...]
    vision: VisionManifest | None = None


def export_encoders(
    model: Path,
    repository: Path,
    *,
    adapter: Path | None = None,
    node_encoding: NodeEncoding | None = None,
    precision: Precision | None = None,
    profile: Profile = "embedded",
    name: str | None = None,
    reader_tokenizer: Path | None = None,
    pixels: bool = True,
    plans: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Export a sentence-embedding model as query encoder and node encoder.

    Args:
        model: A sentence-transformers folder, or that of a Qwen3-VL embedding model.
        repository: The model repository; encoders' folders are made where they are missing.
        adapter: LoRA adapter folder, merged into the node encoder; the query encoder stays the base model.
        node_encoding: How nodes are encoded; by default as the adapter's card says, and ``separate`` without one.
            ``contextual`` needs a model with mean pooling.
        precision: ``fp32``, or ``bf16`` for matrix products of the node encoder in bfloat16, which the embedded
            profile alone serves; by default ``bf16`` there with ``contextual``, else ``fp32``. The files are the same.
            Encoders that see pixels are ``fp32`` unless asked otherwise, and else have files of that type, the vision
            tower too: ``fp16`` in every profile, ``bf16`` in all but ``onnx``.
        profile: All take the same ONNX files of one precision and differ in the configuration that Triton is started
            with, and in the precisions that they serve. ``tensorrt`` needs plans besides, built from those files.
        name: The model's name in the manifests; by default as its own configuration says.
        reader_tokenizer: ``tokenizer.json`` of the model that will read the evidence, for token counts; may be left
            out when the repository has one.
        pixels: Export a Qwen3-VL with its vision tower. Without it, as for any model of text, items' captions and
            transcripts are read, and their pictures are not seen.
        plans: Build the plans of ``tensorrt``, which only the container that serves them can, on its GPU. Without,
            they are built there later (:mod:`canopy_export.tensorrt.build`).
        report: Called with a line about each step.

    Raises:
        ExportError: The model cannot be exported, the adapter is for another model or node encoding, a gate did not
            pass, the plans cannot be built here, or the profile does not serve the precision.
    """
    _require_profile(profile)
    source = read_source(Path(model), name=name)
    encoding = node_encoding_of(source, adapter, node_encoding)
    seen = pixels and source.chat
    precision = _precision(profile, _PIXEL_PRECISIONS[profile] if seen else _PRECISIONS[profile, encoding], precision)
    repository = Path(repository)
    _put_reader_tokenizer(reader_tokenizer, repository)
    vision = vision_wanted(source, precision) if seen else None
    sight = Sight(vision.hidden) if vision else None
    # Where the configurations fit, an operator's own settings in them stand.
    if not fit(repository, source.dimension, source.window, sight):
        write_configs(repository, source.dimension, window=source.window, sight=sight)
    manifests: dict[str, EncoderManifest] = {}
    built = []
    wanted_manifests = {
        QUERY_ENCODER: (None, _manifest(source, vision)),
        NODE_ENCODER: (
            adapter,
            msgspec.structs.replace(
                _manifest(source, vision),
                adapter=adapter_revision(adapter) if adapter else "",
                node_encoding=encoding,
                precision=precision,
            ),
        ),
    }
    for encoder, (extra, wanted) in wanted_manifests.items():
        folder = repository / encoder
        current = _current(folder, wanted)
        if current is None:
            report(f"exporting {encoder} from {source.name}")
            current = _build(encoder, source, extra, folder, wanted)
            built.append(encoder)
        else:
            report(f"{encoder} is up to date")
        manifests[encoder] = current
    if vision is not None:
        vision, made = export_vision(source, repository / VISION_ENCODER, vision, report)
        built += [VISION_ENCODER] * made
    if profile == "tensorrt":
        _plans(repository, build=plans, report=report)
    return Exported(manifests[QUERY_ENCODER], manifests[NODE_ENCODER], tuple(built), vision)


def _require_profile(profile: str) -> None:
    if profile not in get_args(Profile):
        raise ExportError(f"profile {profile!r}: expected one of {', '.join(get_args(Profile))}")


def _plans(repository: Path, *, build: bool, report: Callable[[str], None]) -> None:
    """Build the plans, or say how to.

    Raises:
        ExportError: They cannot be built here; the graphs are there, and the message says how to go on.
    """
    command = f"python3 -m canopy_export.tensorrt.build {repository}"
    if not build:
        report(f"no plans yet: run '{command}' inside the container that serves, on its GPU")
        return
    from canopy_export.tensorrt.build import build_repository

    try:
        build_repository(repository, report=report)
    except ExportError as error:
        raise ExportError(
            f"{error}; the graphs are written, so go on with '{command}' where plans can be built"
        ) from None


def _put_reader_tokenizer(given: Path | None, repository: Path) -> None:
    target = repository / READER_TOKENIZER
    if given is None:
        if not target.is_file():
            raise ExportError(
                f"{target}: not there; give the tokenizer.json of the model that reads the evidence "
                "(--reader-tokenizer)"
            )
        return
    TokenCounter(given)  # refuses what is not a tokenizer before it replaces one that works
    if not target.is_file() or file_sha256(target) != file_sha256(given):
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(given, target)


def _precision(profile: Profile, served: tuple[Precision, ...], given: Precision | None) -> Precision:
    if given is not None and given not in served:
        raise ExportError(f"precision {given!r}: profile {profile!r} serves {' and '.join(sorted(served))} only")
    return given or served[0]


def _manifest(source: Source, vision: VisionManifest | None) -> EncoderManifest:
    return EncoderManifest(
        model=source.name,
        model_revision=source.revision,
        template=TEMPLATE_HASH,
        window=source.window,
        dimension=source.dimension,
        precision=vision.precision if vision else "fp32",
        pooling=source.pooling,
        pixels=vision is not None,
        versions={
            "graph": PIXEL_GRAPH_VERSION if vision else GRAPH_VERSION,
            "opset": str(OPSET),
            **{tool: version(tool) for tool in _TOOLS},
        },
    )


def _current(folder: Path, wanted: EncoderManifest) -> EncoderManifest | None:
    """The manifest in a folder when it and its files are what an export would make now."""
    try:
        found = EncoderManifest.load(folder / MANIFEST_FILE)
        found.verify(folder)
    except ExportError:
        return None
    same = msgspec.structs.replace(found, files={}) == wanted
    return found if same and set(found.files) - {DATA_FILE} == {GRAPH_FILE, TOKENIZER_FILE} else None


def _build(
    encoder: str, source: Source, adapter: Path | None, folder: Path, wanted: EncoderManifest
) -> EncoderManifest:
    from canopy_export.onnx_write import data_file

    graph_file = folder / GRAPH_FILE
    graph_file.parent.mkdir(parents=True, exist_ok=True)
    # Without a manifest a half-finished export is told from a finished one.
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    # In a folder of its own until it has passed its gate; its name must not change, as large weights are found by it.
    with tempfile.TemporaryDirectory(dir=graph_file.parent, prefix=".gate-") as gate:
        made = Path(gate) / graph_file.name
        node = encoder == NODE_ENCODER
        if wanted.pixels:
            write_pixel_graph(source, adapter, made, node=node, precision=wanted.precision)
        else:
            _write_graph(source, adapter, made, node=node)
        (folder / DATA_FILE).unlink(missing_ok=True)
        for file in (data_file(made), made):
            if file.is_file():
                os.replace(file, graph_file.parent / file.name)
    source.write_tokenizer(folder / f"{TOKENIZER_FILE}.partial", "query" if encoder == QUERY_ENCODER else "node")
    os.replace(folder / f"{TOKENIZER_FILE}.partial", folder / TOKENIZER_FILE)
    names = [name for name in (GRAPH_FILE, DATA_FILE, TOKENIZER_FILE) if (folder / name).is_file()]
    files = {name: file_sha256(folder / name) for name in names}
    manifest = msgspec.structs.replace(wanted, files=files)
    manifest.save(folder / MANIFEST_FILE)
    return manifest


def _write_graph(source: Source, adapter: Path | None, file: Path, *, node: bool) -> None:
    """Write the graph of an encoder that reads text, through its gate."""
    from canopy_export.graphs import NodeGraph, QueryGraph, load_backbone, vocabulary_of
    from canopy_export.onnx_graph import export_node_graph, export_query_graph

    backbone = load_backbone(str(source.path))
    vocabulary = vocabulary_of(backbone)
    if adapter is not None:
        from canopy_export.adapter import merge_adapter

        backbone = merge_adapter(backbone, adapter, source.pooling, vocabulary)
    if node:
        export_node_graph(NodeGraph(backbone, source.pooling).eval(), file, vocabulary)
    else:
        export_query_graph(QueryGraph(backbone, source.pooling).eval(), file, vocabulary)


def _replace(given: Path, target: Path) -> None:
    """Copy a file so that a reader sees the old one or the new one, never half of it."""
    partial = target.with_name(target.name + ".partial")
    shutil.copyfile(given, partial)
    os.replace(partial, target)
