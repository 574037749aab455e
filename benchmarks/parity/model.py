"""The model that the chain is shown with where no other is given."""

from __future__ import annotations

from pathlib import Path

from canopy_export.qwen3vl.tiny import random_qwen3vl
from canopy_export.qwen3vl.tiny_adapter import write_adapter


def parity_model(folder: Path) -> tuple[Path, Path]:
    """Write a small Qwen3-VL with random weights in bfloat16, as the published ones are, and a random adapter.

    Returns:
        Folders of the model and of the adapter.
    """
    model = random_qwen3vl(folder / "model", 0, "small")
    return model, write_adapter(model, folder / "adapter")
