"""The two graphs that are exported: texts as padded rows, and node texts as packed rows.

Both build their own additive attention mask and give it to the backbone in four dimensions, so that no shape
condition of a library's mask code is frozen into the graph, and both pool in float32. Both can be trained through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Pooling
from canopy_export.qwen3vl.folder import MODEL_TYPE as QWEN3VL

#: Added to the attention score of a token that may not be seen: far below any score, and finite in half precision.
MASKED: Final = -1e4
#: Tokens of a packed row for each of its slots.
TOKENS_PER_SLOT: Final = 4
_EPSILON: Final = 1e-12
#: Model types whose first position is not 0 but the padding index plus one.
_SHIFTED_POSITIONS: Final = {"roberta", "xlm-roberta", "camembert"}


def vocabulary_of(backbone: nn.Module) -> int:
    """Number of token ids that a backbone knows."""
    config: Any = backbone.config
    return int(config.vocab_size)


def load_backbone(path: str) -> nn.Module:
    """Load a backbone in float32 with plain attention, the form that exports; of a Qwen3-VL its language part.

    Raises:
        ExportError: The folder cannot be loaded.
    """
    from transformers import AutoModel
    from transformers.utils import logging

    disable_progress_bar: Callable[[], None] = logging.disable_progress_bar
    disable_progress_bar()
    try:
        model: nn.Module = AutoModel.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    except (OSError, ValueError, ImportError) as error:
        raise ExportError(f"{path}: transformers cannot load this model ({error})") from error
    config: Any = model.config
    if config.model_type == QWEN3VL:
        model = model.get_submodule("language_model")
    return model.eval()


class _Encoder(nn.Module):
    """What both graphs share: a backbone, its position offset, whether it looks back only."""

    def __init__(self, backbone: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        config: Any = backbone.config
        self.offset = int(config.pad_token_id) + 1 if config.model_type in _SHIFTED_POSITIONS else 0
        self.causal = any(getattr(module, "is_causal", False) is True for module in backbone.modules())
        self.extra = {"use_cache": False} if self.causal else {}

    def states(self, input_ids: Tensor, visible: Tensor, position_ids: Tensor) -> Tensor:
        """Token states float32 ``[B,L,H]``; ``visible`` is bool ``[B,L,L]``, query by key."""
        if self.causal:
            visible = visible & (position_ids[:, :, None] >= position_ids[:, None, :])
        # Attention kernels ask for a mask in the type of what they are given.
        zero = torch.zeros((), dtype=self._precision(input_ids.device.type), device=input_ids.device)
        mask = torch.where(visible, zero, zero + MASKED)[:, None, :, :]
        output = self.backbone(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids + self.offset, **self.extra
        )
        states: Tensor = output.last_hidden_state
        return states.float()

    def _precision(self, device: str) -> torch.dtype:
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return next(self.backbone.parameters()).dtype


def _mean(weights: Tensor, states: Tensor) -> Tensor:
    """Weighted means ``[B,S,H]`` of token states ``[B,L,H]``, weights ``[B,S,L]``, in float32 even under autocast."""
    with torch.autocast(states.device.type, enabled=False):
        return torch.matmul(weights, states) / weights.sum(2, keepdim=True).clamp(min=1.0)


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length one along the last axis; a zero vector stays zero."""
    return vectors / torch.sqrt((vectors * vectors).sum(-1, keepdim=True)).clamp(min=_EPSILON)


class QueryGraph(_Encoder):
    """``input_ids``, ``attention_mask`` int64 ``[N,L]`` to ``embedding`` float32 ``[N,D]``."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode padded rows; padding may stand on either side."""
        real = attention_mask > 0
        positions = (torch.cumsum(attention_mask, dim=1) - 1).clamp(min=0)
        states = self.states(input_ids, real[:, None, :].expand(-1, input_ids.shape[1], -1), positions)
        weights = real.to(states.dtype)
        if self.pooling == "cls":
            weights = weights * (positions == 0).to(states.dtype)
        elif self.pooling == "last":
            weights = weights * (positions == positions.max(dim=1, keepdim=True).values).to(states.dtype)
        return _unit(_mean(weights[:, None, :], states)[:, 0, :])


class NodeGraph(_Encoder):
    """``input_ids``, ``segment_ids``, ``position_ids``, ``slot_ids`` int64 ``[R,L]`` to ``embeddings``.

    Embeddings are float32 ``[R,L//4,D]``, not normalised. Segments and slots count from 1 in each row and 0 is
    padding. Tokens see their own segment alone; slot ``s`` of the output pools the tokens of slot id ``s + 1``, and an
    unused one is zeros.
    """

    def forward(self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor, slot_ids: Tensor) -> Tensor:
        """Encode every segment of every row as if it stood alone, and pool its slots."""
        visible = segment_ids[:, :, None] == segment_ids[:, None, :]
        states = self.states(input_ids, visible, position_ids)
        slots = torch.arange(1, input_ids.shape[1] // TOKENS_PER_SLOT + 1, device=input_ids.device)
        members = slot_ids[:, None, :] == slots[None, :, None]
        weights = members.to(states.dtype)
        if self.pooling == "cls":
            weights = weights * (position_ids == 0).to(states.dtype)[:, None, :]
        elif self.pooling == "last":
            reach = torch.where(members, position_ids[:, None, :], -1)
            weights = weights * (reach == reach.max(dim=2, keepdim=True).values).to(states.dtype)
        return _mean(weights, states)
