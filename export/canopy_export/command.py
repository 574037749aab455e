"""``canopy export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from canopy_backend.errors import ExportError
from canopy_backend.manifest import NodeEncoding, Precision
from canopy_export.example import EXAMPLE_NAME, adapter_for, example_model, precision_for
from canopy_export.export import Profile, export_encoders


def export(
    model: Annotated[
        Path | None,
        typer.Option(
            envvar="CANOPY_MODEL", help="sentence-transformers or Qwen3-VL folder; by default all-MiniLM-L6-v2."
        ),
    ] = None,
    repository: Annotated[
        Path, typer.Option(envvar="CANOPY_MODEL_REPOSITORY", help="Model repository to export into.")
    ] = Path("model_repository"),
    adapter: Annotated[
        Path | None,
        typer.Option(
            envvar="CANOPY_ADAPTER",
            help="LoRA adapter folder, merged into the node encoder; by default the example's own with the example "
            "model, none with any other. 'none' for the base model as it is.",
        ),
    ] = None,
    node_encoding: Annotated[
        str | None,
        typer.Option(
            envvar="CANOPY_NODE_ENCODING",
            help="separate or contextual; by default what the adapter was trained for, else separate.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            envvar="CANOPY_PRECISION",
            help="fp32 or bf16 for the node encoder's matrix products; by default bf16 in the embedded profile with "
            "the example's own adapters and with contextual, else fp32. With pixels also fp16, and for all graphs.",
        ),
    ] = None,
    profile: Annotated[str, typer.Option(envvar="CANOPY_PROFILE", help="embedded, onnx or tensorrt.")] = "embedded",
    name: Annotated[str | None, typer.Option(help="Name of the model in its manifests.")] = None,
    reader_tokenizer: Annotated[
        Path | None,
        typer.Option(envvar="CANOPY_READER_TOKENIZER", help="tokenizer.json of the model that reads the evidence."),
    ] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Leave the vision tower of a Qwen3-VL out: pictures are not seen.")
    ] = False,
    plans: Annotated[
        bool,
        typer.Option(help="Build the plans of tensorrt, inside the container that serves; else only what they need."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the revisions as JSON.")] = False,
) -> None:
    """Export an encoder to ONNX as query encoder and node encoder; what is up to date is left alone."""
    console = Console()
    encoding, served, asked = _node_encoding(node_encoding), _profile(profile), _precision(precision)
    if served == "embedded":
        asked = precision_for(model, adapter, asked)
    exported = export_encoders(
        model or example_model(),
        repository,
        adapter=adapter_for(model, adapter, encoding),
        node_encoding=encoding,
        precision=asked,
        profile=served,
        name=name or (None if model else EXAMPLE_NAME),
        reader_tokenizer=reader_tokenizer,
        pixels=not text_only,
        plans=plans,
        report=(lambda _: None) if as_json else console.print,
    )
    if as_json:
        console.print_json(
            data={
                "model": exported.query.model,
                "query_encoder": exported.query.revision,
                "node_encoder": exported.node.revision,
                "node_encoding": exported.node.node_encoding,
                "precision": exported.node.precision,
                "pixels": exported.node.pixels,
                "built": list(exported.built),
            }
        )
    else:
        console.print(
            f"{exported.query.model}: query encoder {exported.query.revision}, node encoder {exported.node.revision} "
            f"({exported.node.node_encoding}, {exported.node.precision}, "
            f"{'sees pixels' if exported.node.pixels else 'reads text alone'})"
        )


def _node_encoding(value: str | None) -> NodeEncoding | None:
    if value is None or value in ("separate", "contextual"):
        return value  # type: ignore[return-value]
    raise ExportError(f"node encoding {value!r}: expected separate or contextual")


def _precision(value: str | None) -> Precision | None:
    if value is None or value in ("fp32", "bf16", "fp16"):
        return value  # type: ignore[return-value]
    raise ExportError(f"precision {value!r}: expected fp32, bf16 or fp16")


def _profile(value: str) -> Profile:
    if value in ("embedded", "onnx", "tensorrt"):
        return value  # type: ignore[return-value]
    raise ExportError(f"profile {value!r}: expected embedded, onnx or tensorrt")
