"""A LoRA adapter merged into the language backbone of a Qwen3-VL, in float32; its vision tower is not touched."""

from __future__ import annotations

import hashlib
import re
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from canopy_backend.errors import ExportError
from canopy_backend.qwen3vl.rows import pad_rows, vectors_of
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_export.adapter import UNREADABLE, quiet_peft
from canopy_export.qwen3vl.gates import MIN_COSINE, compare, random_sample
from canopy_export.qwen3vl.graphs import LanguageGraph
from canopy_export.qwen3vl.onnx_files import run_torch

#: What an adapter may change, as a pattern of module names: attention and MLP projections of the language backbone.
TARGETS: Final = r"(.*language_model\.)?layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
_PREFIX: Final = "base_model.model."


def merge_language_adapter(model: nn.Module, adapter: Path, settings: VisionSettings) -> None:
    """Merge an adapter into a model, which is changed, and check that vectors stay those of the adapter.

    Args:
        model: A Qwen3-VL without a head, in float32.
        adapter: LoRA adapter folder, made for the whole model or for its language backbone.
        settings: The model's.

    Raises:
        ExportError: The adapter does not fit the model, changes anything but the projections of the language backbone,
            or merging changes vectors.
    """
    before = vision_hash(model)
    adapted = put_language_adapter(model, adapter)
    expected = _probe(model, settings)
    adapted.merge_and_unload(safe_merge=True)
    if vision_hash(model) != before:
        raise ExportError(f"{adapter}: merging changes the vision tower, which every encoder shares")
    cosine, _ = compare(expected, _probe(model, settings))
    if not cosine >= MIN_COSINE["fp32"]:
        raise ExportError(f"{adapter}: merging moves a vector to cosine {cosine:.6f}, limit {MIN_COSINE['fp32']}")


def put_language_adapter(model: nn.Module, adapter: Path) -> Any:
    """Switch an adapter on in a model, which is changed, without merging it.

    Args:
        model: A Qwen3-VL without a head, in float32.
        adapter: As for :func:`merge_language_adapter`.

    Returns:
        peft's model around it.

    Raises:
        ExportError: The adapter does not fit the model, or changes anything but the projections of the language
            backbone.
    """
    from peft import PeftModel

    try:
        base = model if _of_whole_model(adapter) else model.get_submodule("language_model")
        with quiet_peft(), warnings.catch_warnings():
            # A matrix that finds no module, or a module without one, would be left out with a remark.
            warnings.filterwarnings("error", message=".*(missing|unexpected).*adapter keys", category=UserWarning)
            adapted = PeftModel.from_pretrained(base, str(adapter), is_trainable=False).eval()
    except (*UNREADABLE, UserWarning) as error:
        raise ExportError(f"{adapter}: the adapter does not fit the model ({error})") from error
    _require_targets(adapted, adapter)
    return adapted


def vision_hash(model: nn.Module) -> str:
    """sha256 over the names and weights of the vision tower, hexadecimal."""
    digest = hashlib.sha256()
    for name, weight in model.get_submodule("visual").state_dict().items():
        digest.update(name.encode() + weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _of_whole_model(adapter: Path) -> bool:
    """Whether an adapter's matrices are named from the whole model on, rather than from its language backbone."""
    from safetensors import safe_open

    with safe_open(str(adapter / "adapter_model.safetensors"), framework="pt") as file:
        return any("language_model." in name or "visual." in name for name in file.keys())  # noqa: SIM118


def _require_targets(adapted: nn.Module, adapter: Path) -> None:
    allowed = re.compile(TARGETS)
    found = {name.rsplit(".lora_", 1)[0] for name, _ in adapted.named_parameters() if ".lora_" in name}
    changed = {name.removeprefix(_PREFIX) for name in found}
    wrong = sorted(name for name in changed if not allowed.fullmatch(name))
    if wrong or not changed:
        raise ExportError(
            f"{adapter}: the adapter changes {wrong[0] if wrong else 'nothing'}; only attention and MLP projections of "
            "the language backbone may differ"
        )


def _probe(model: nn.Module, settings: VisionSettings) -> Any:
    """Vectors of random sequences with and without pixels."""
    backbone: Any = model.get_submodule("language_model")
    config: Any = backbone.config
    sample = random_sample(settings, config.vocab_size, config.hidden_size, [(24, 2), (16, 0), (9, 1), (3, 0)])
    rows = pad_rows(sample.sequences, 64)
    return vectors_of(rows, run_torch(LanguageGraph(backbone).eval(), sample.rows(rows))[0])
