"""A Qwen3-VL embedding model as two ONNX graphs in a folder, with what the host needs beside them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from canopy_backend.errors import ExportError
from canopy_backend.manifest import MANIFEST_FILE, EncoderManifest, Precision, file_sha256
from canopy_backend.qwen3vl.rows import pad_rows
from canopy_backend.qwen3vl.settings import SETTINGS_FILE, VisionSettings
from canopy_backend.templates import TEMPLATE_HASH
from canopy_export.onnx_write import EXTERNAL_OVER, data_file
from canopy_export.qwen3vl.adapter import merge_language_adapter
from canopy_export.qwen3vl.folder import is_qwen3vl, vision_settings
from canopy_export.qwen3vl.gates import (
    GRIDS,
    MIN_COSINE,
    check_language,
    check_vision,
    compare,
    random_patches,
    random_sample,
)
from canopy_export.qwen3vl.graphs import TYPES, LanguageGraph, VisionGraph, to_precision
from canopy_export.qwen3vl.onnx_files import run_torch, write_language, write_vision
from canopy_export.source import OPSET, adapter_revision, node_encoding_of, read_source

LANGUAGE_FILE: Final = "language.onnx"
VISION_FILE: Final = "vision.onnx"
QUERY_TOKENIZER: Final = "query_tokenizer.json"
NODE_TOKENIZER: Final = "node_tokenizer.json"
#: Most tokens of one sequence with pixels, as in the model's own embedding code.
WINDOW: Final = 8192
_TOOLS: Final = ("torch", "transformers", "onnx", "peft")


def load_model(folder: Path) -> Any:
    """A Qwen3-VL without a head, in float32 with plain attention.

    Raises:
        ExportError: The folder is none, or cannot be loaded.
    """
    from transformers import Qwen3VLModel
    from transformers.utils import logging

    if not is_qwen3vl(folder):
        raise ExportError(f"{folder}: not a Qwen3-VL folder; its config.json must say model_type qwen3_vl")
    disable_progress_bar: Callable[[], None] = logging.disable_progress_bar
    disable_progress_bar()
    try:
        model: Any = Qwen3VLModel.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    except (OSError, ValueError, ImportError) as error:
        raise ExportError(f"{folder}: transformers cannot load this model ({error})") from error
    return model.eval()


def export_graphs(
    model: Path,
    out: Path,
    *,
    adapter: Path | None = None,
    precision: Precision = "bf16",
    dimension: int | None = None,
    language_only: bool = False,
    external_over: int = EXTERNAL_OVER,
    report: Callable[[str], None] = lambda _: None,
) -> EncoderManifest:
    """Export both graphs, each through its gate, with settings, both tokenizers and a manifest.

    Args:
        model: Folder of a Qwen3-VL embedding model.
        out: Folder to write into; made if missing.
        adapter: LoRA adapter, merged into the language backbone in float32.
        precision: Type of the weights and products; norms, softmax and pooling are float32 in all of them.
        dimension: Numbers of a vector that are kept, at unit length again; by default all.
        language_only: Leave the vision graph out, which is the same with and without an adapter.
        external_over: Bytes of weights from which on they stand in a file of their own.
        report: Called with a line about each step.

    Raises:
        ExportError: The model or the adapter cannot be used, or a gate did not pass.
    """
    source = read_source(model)
    if precision not in TYPES:
        raise ExportError(f"precision {precision!r}: expected one of {', '.join(TYPES)}")
    if adapter is not None:
        node_encoding_of(source, adapter, "separate")  # refuses one that was trained for another model
    report(f"loading {source.name}")
    loaded = load_model(source.path)
    settings = vision_settings(source.path)
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST_FILE).unlink(missing_ok=True)  # a folder without one is not finished
    if adapter is not None:
        report(f"merging {adapter.name}")
        merge_language_adapter(loaded, adapter, settings)
    names = _write_language(loaded, out, settings, precision, dimension, external_over, report)
    if not language_only:
        report(f"writing {VISION_FILE} in {precision}")
        write_tower(loaded.visual, out / VISION_FILE, settings, precision, external_over=external_over)
        names += _with_data(out, VISION_FILE)
    settings.save(out)
    source.write_tokenizer(out / QUERY_TOKENIZER, "query")
    source.write_tokenizer(out / NODE_TOKENIZER, "node")
    names += [SETTINGS_FILE, QUERY_TOKENIZER, NODE_TOKENIZER]
    manifest = EncoderManifest(
        model=source.name,
        model_revision=source.revision,
        adapter=adapter_revision(adapter) if adapter else "",
        template=TEMPLATE_HASH,
        window=min(WINDOW, int(loaded.config.text_config.max_position_embeddings)),
        dimension=dimension or source.dimension,
        precision=precision,
        pooling="last",
        files={name: file_sha256(out / name) for name in names},
        versions={"opset": str(OPSET), **{tool: version(tool) for tool in _TOOLS}},
    )
    manifest.save(out / MANIFEST_FILE)
    return manifest


def _write_language(
    loaded: Any,
    out: Path,
    settings: VisionSettings,
    precision: Precision,
    dimension: int | None,
    external_over: int,
    report: Callable[[str], None],
) -> list[str]:
    graph = LanguageGraph(loaded.language_model, dimension).eval()
    vocabulary = int(loaded.config.text_config.vocab_size)
    sample = random_sample(settings, vocabulary, graph.hidden, [(9, 1), (5, 0)])
    inputs = sample.rows(pad_rows(sample.sequences, 32))
    exact = run_torch(graph, inputs)[0]
    to_precision(loaded.language_model, precision)
    _require_precision("language backbone", exact, run_torch(graph, inputs)[0], precision)
    report(f"writing {LANGUAGE_FILE} in {precision}")
    write_language(graph, inputs, out / LANGUAGE_FILE, external_over=external_over)
    check_language(graph, out / LANGUAGE_FILE, settings, vocabulary, precision)
    return _with_data(out, LANGUAGE_FILE)


def write_tower(
    tower: Any, path: Path, settings: VisionSettings, precision: Precision, *, external_over: int = EXTERNAL_OVER
) -> None:
    """Write the vision graph, through its gate.

    Args:
        tower: The vision model of a Qwen3-VL in float32; it is cast.
        path: The file.
        settings: The model's.
        precision: Types of the file's weights and products; vectors that come out are float32 in all of them.
        external_over: As for :func:`canopy_export.onnx_write.write_onnx`.

    Raises:
        ExportError: The cast moves a vector too far, or the file does not give what torch gives.
    """
    graph = VisionGraph(tower, settings).eval()
    inputs = random_patches(settings, GRIDS[:2])
    exact = run_torch(graph, inputs)
    to_precision(tower, precision)
    for name, left, right in zip(("visual", "deepstack"), exact, run_torch(graph, inputs), strict=True):
        _require_precision(f"vision tower, {name}", left, right, precision)
    write_vision(graph, inputs, path, external_over=external_over)
    check_vision(graph, path, settings, precision)


def _require_precision(what: str, exact: Any, reduced: Any, precision: Precision) -> None:
    cosine, _ = compare(exact.reshape(-1, exact.shape[-1]), reduced.reshape(-1, exact.shape[-1]))
    if not cosine >= MIN_COSINE[precision]:
        raise ExportError(f"{what}: {precision} moves a vector to cosine {cosine:.6f}, limit {MIN_COSINE[precision]}")


def _with_data(out: Path, name: str) -> list[str]:
    return [file.name for file in (out / name, data_file(out / name)) if file.is_file()]
