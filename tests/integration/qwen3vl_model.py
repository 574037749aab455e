"""An adapter with random weights for a tiny Qwen3-VL, and pictures of noise for it to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from canopy_export.qwen3vl.adapter import TARGETS
from canopy_export.qwen3vl.build import load_model


def write_adapter(model: Path, folder: Path, targets: str = TARGETS, *, language: bool = False) -> Path:
    from peft import LoraConfig, get_peft_model

    from canopy_export.adapter import quiet_peft

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


def picture(random: np.random.Generator, height: int, width: int) -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()
