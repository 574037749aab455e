"""The node encoder with its LoRA matrices: made, saved as an adapter, read back."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canopy_backend.errors import TrainingError
from canopy_export.adapter import UNREADABLE, quiet_peft
from canopy_export.graphs import NodeGraph, load_backbone
from canopy_export.source import Source
from canopy_training.settings import TrainSettings

#: Parts of a backbone that get no LoRA matrices: heads that no vector passes, and vision towers, which stay frozen.
_EXCLUDED: Final = r".*(pooler|lm_head|visual|vision).*"


class NodeModel:
    """A node graph whose backbone carries LoRA matrices, the only weights that learn.

    The backbone's own dropout is off: its weights are frozen, and noise in them would only blur the scores that the
    loss compares.

    Args:
        source: The base model.
        settings: Rank, scale and dropout of the matrices.
        start: Folder of an adapter to start from; its rank must be the settings'.

    Attributes:
        graph: The node graph; what it is called with is what the server calls it with.

    Raises:
        TrainingError: The base model has no layer that can be adapted, or the adapter to start from has other
            matrices.
    """

    def __init__(self, source: Source, settings: TrainSettings, start: Path | None = None) -> None:
        from peft import LoraConfig, get_peft_model

        backbone = load_backbone(str(source.path))
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft multiplies; it need not be whole
            lora_dropout=settings.dropout,
            target_modules="all-linear",
            exclude_modules=_excluded(backbone),
            bias="none",
        )
        try:
            with quiet_peft():
                self._peft: Any = get_peft_model(backbone, config)
        except ValueError as error:
            raise TrainingError(f"{source.name}: LoRA finds no layer to adapt ({error})") from error
        if start is not None:
            self._load(start, settings)
        self.graph: nn.Module = NodeGraph(self._peft.get_base_model(), source.pooling).eval()

    def learning(self, on: bool) -> None:
        """Switch the dropout in front of the LoRA matrices."""
        for name, module in self.graph.named_modules():
            if "lora_dropout" in name:
                module.train(on)

    def parameters(self) -> list[nn.Parameter]:
        """The weights that learn, in a fixed order."""
        return [weight for _, weight in sorted(self._named())]

    def state(self) -> dict[str, Tensor]:
        """Copies of them by name."""
        return {name: weight.detach().cpu().clone() for name, weight in self._named()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Set them to what :meth:`state` gave."""
        own = dict(self._named())
        if set(own) != set(state):
            raise TrainingError("the saved state has other weights than this base model and rank")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(state[name])

    def save(self, folder: Path, name: str) -> None:
        """Write the adapter as ``peft`` does, which ``canopy export`` reads; ``name`` is the base model's.

        In half precision: it halves the file, and moves scores by less than the vectors' own float16.
        """
        save_adapter(self._peft, folder, name)

    def _load(self, folder: Path, settings: TrainSettings) -> None:
        from peft import LoraConfig, load_peft_weights, set_peft_model_state_dict

        if not (folder / "adapter_config.json").is_file():  # peft would look for it on a hub
            raise TrainingError(f"{folder}: no adapter here")
        stored = LoraConfig.from_pretrained(str(folder))
        if (stored.r, stored.lora_alpha) != (settings.rank, settings.alpha):
            raise TrainingError(
                f"{folder}: rank {stored.r} and alpha {stored.lora_alpha:g}, not {settings.rank} and "
                f"{settings.alpha:g}; start from it with --rank {stored.r} --alpha {stored.lora_alpha:g}"
            )
        try:
            found: Any = set_peft_model_state_dict(self._peft, load_peft_weights(str(folder), device="cpu"))
        except UNREADABLE as error:
            raise TrainingError(f"{folder}: does not fit this base model and rank ({error})") from error
        missing = [name for name in found.missing_keys if "lora_" in name]
        if missing or found.unexpected_keys:
            raise TrainingError(
                f"{folder}: does not fit this base model and rank ({[*missing, *found.unexpected_keys][:3]})"
            )

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, weight) for name, weight in self.graph.named_parameters() if weight.requires_grad]


def save_adapter(model: Any, folder: Path, base: str, adapter: str = "default") -> None:
    """Write one adapter of a ``peft`` model into a folder, in half precision, with its base model's name."""
    model.peft_config[adapter].base_model_name_or_path = base
    state = {key: weight.half() for key, weight in model.state_dict().items() if "lora_" in key}
    with tempfile.TemporaryDirectory() as made:
        # Without the last argument peft looks the base model up on a hub.
        model.save_pretrained(
            made, safe_serialization=True, state_dict=state, selected_adapters=[adapter], save_embedding_layers=False
        )
        # It puts every adapter but the first into a folder of its own, and adds a card that is a template.
        files = Path(made, adapter) if adapter != "default" else Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(files / name, folder / name)


def _excluded(backbone: nn.Module) -> str | None:
    """What is left alone; nothing where a backbone has no such part, of which peft would warn."""
    found = any(re.fullmatch(_EXCLUDED, name) for name, _ in backbone.named_modules())
    return _EXCLUDED if found else None
