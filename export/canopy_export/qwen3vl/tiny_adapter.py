"""An adapter with random weights, for tests and rehearsals without a training run."""

from __future__ import annotations

from pathlib import Path

import torch

from canopy_export.adapter import quiet_peft
from canopy_export.qwen3vl.adapter import TARGETS
from canopy_export.qwen3vl.build import load_model


def write_adapter(model: Path, folder: Path, targets: str = TARGETS, *, language: bool = False) -> Path:
    """Write a LoRA adapter whose matrices are large enough to move every vector.

    Args:
        model: Folder of a Qwen3-VL embedding model.
        folder: Where the adapter goes; made if missing.
        targets: Pattern of the modules that it changes.
        language: Named from the language backbone on, rather than from the whole model.

    Returns:
        The folder.
    """
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    loaded = load_model(model)
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=targets)
    with quiet_peft():
        adapted = get_peft_model(loaded.language_model if language else loaded, config)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
        adapted.save_pretrained(str(folder))
    return folder
