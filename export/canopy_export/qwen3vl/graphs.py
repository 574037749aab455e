"""The two graphs of a Qwen3-VL: its language backbone and its vision tower, without a data-dependent shape.

Both take the modules of the loaded model and leave out what does not trace: the library's mask code, the scatter of
visual embeddings, the split of attention by frames. Masks are built here from segment numbers, visual rows are gathered
by index, and angles are taken from position ids that the host computed (:mod:`canopy_backend.qwen3vl`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Precision
from canopy_backend.qwen3vl.patches import scaling
from canopy_backend.qwen3vl.settings import VisionSettings

#: Added to an attention score that may not count: far below any score, and finite in half precision.
MASKED: Final = -1e4
#: Feature maps of the vision tower that are added behind the first decoder layers.
DEEPSTACK: Final = 3
LANGUAGE_INPUTS: Final = (
    "input_ids",
    "segment_ids",
    "position_ids",
    "last_index",
    "visual_index",
    "visual",
    "deepstack",
)
VISION_INPUTS: Final = ("patches", "pos_idx", "pos_w", "pos_ids", "seg")
VISION_OUTPUTS: Final = ("visual", "deepstack")
#: Types of weights and products, by precision.
TYPES: Final[dict[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_EPSILON: Final = 1e-12


class LanguageGraph(nn.Module):
    """Rows of tokens and rows of visual embeddings to one vector a sequence.

    Args:
        backbone: The language model of a Qwen3-VL.
        dimension: Numbers of a vector that are kept; by default all.

    Raises:
        ExportError: The model's rotary embedding is not the one that the graph computes.
    """

    inv_freq: Tensor
    axis: Tensor

    def __init__(self, backbone: nn.Module, dimension: int | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        config: Any = backbone.config
        self.hidden = int(config.hidden_size)
        self.dimension = dimension or self.hidden
        if not 1 <= self.dimension <= self.hidden:
            raise ExportError(f"dimension {dimension}: the model's vectors have {self.hidden}")
        rotary: Any = backbone.rotary_emb
        if rotary.rope_type != "default":
            raise ExportError(f"rotary embedding {rotary.rope_type!r}: only the default kind is known")
        self.register_buffer("inv_freq", rotary.inv_freq.float().clone(), persistent=False)
        self.register_buffer("axis", _axes(list(rotary.mrope_section), len(rotary.inv_freq)), persistent=False)
        self.scaling = float(rotary.attention_scaling)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        position_ids: Tensor,
        last_index: Tensor,
        visual_index: Tensor,
        visual: Tensor,
        deepstack: Tensor,
    ) -> Tensor:
        """Encode rows.

        Args:
            input_ids: int64 ``[R, L]``.
            segment_ids: int64 ``[R, L]``; a token sees those of its own segment that stand before it.
            position_ids: int64 ``[R, 3, L]``.
            last_index: int64 ``[R, S]``, column of each vector's token, -1 for none.
            visual_index: int64 ``[R, L]``, from 1 a row of ``visual``, 0 for text.
            visual: float32 ``[V, D]``, V at least 1; rows that no index names count for nothing.
            deepstack: float32 ``[3, V, D]``.

        Returns:
            float32 ``[R, S, dimension]``, of length one; zeros where ``last_index`` is -1.
        """
        row = (visual_index - 1).clamp(min=0)
        seen = [visual[row], *(deepstack[place][row] for place in range(DEEPSTACK))]
        states = self.states(input_ids, segment_ids, position_ids, visual_index > 0, seen)
        return self.pooled(states, last_index)

    def states(
        self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor, pixel: Tensor, seen: Sequence[Tensor]
    ) -> Tensor:
        """Token states ``[R, L, hidden]``, normed.

        Args:
            input_ids: int64 ``[R, L]``.
            segment_ids: int64 ``[R, L]``.
            position_ids: int64 ``[R, 3, L]``.
            pixel: bool ``[R, L]``, whether a token is a visual one.
            seen: For each token float32 ``[R, L, hidden]``: what stands in its place, and what the first decoder layers
                add; counts where ``pixel`` does.
        """
        model: Any = self.backbone
        embedded: Tensor = model.embed_tokens(input_ids)
        kind = embedded.dtype
        pixel = pixel[:, :, None]
        states = torch.where(pixel, seen[0].to(kind), embedded)
        mask = self._mask(segment_ids, kind)
        angles = self._angles(position_ids, kind)
        nothing = torch.zeros((), dtype=kind, device=embedded.device)
        for place, layer in enumerate(model.layers):
            states = layer(states, attention_mask=mask, position_embeddings=angles)
            if place < DEEPSTACK:
                states = states + torch.where(pixel, seen[1 + place].to(kind), nothing)
        normed: Tensor = model.norm(states)
        return normed

    def pooled(self, states: Tensor, last_index: Tensor) -> Tensor:
        """Vectors float32 ``[R, S, dimension]`` of the tokens at ``last_index``, -1 for none."""
        where = last_index.clamp(min=0)[:, :, None].expand(-1, -1, states.shape[2])
        vectors = torch.gather(states, 1, where)[:, :, : self.dimension].float()
        vectors = vectors * (last_index >= 0)[:, :, None].float()
        return vectors / torch.sqrt((vectors * vectors).sum(-1, keepdim=True)).clamp(min=_EPSILON)

    def _mask(self, segment_ids: Tensor, kind: torch.dtype) -> Tensor:
        """Additive ``[R, 1, L, L]``: own segment, not later."""
        column = torch.arange(segment_ids.shape[1], device=segment_ids.device)
        seen = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (column[:, None] >= column[None, :])
        zero = torch.zeros((), dtype=kind, device=segment_ids.device)
        return torch.where(seen, zero, zero + MASKED)[:, None, :, :]

    def _angles(self, position_ids: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[R, L, head]``; each frequency turns with the position of its own axis."""
        places = position_ids[:, self.axis, :].float()
        turned = (places * self.inv_freq[None, :, None]).transpose(1, 2)
        turned = torch.cat((turned, turned), dim=-1)
        return (turned.cos() * self.scaling).to(kind), (turned.sin() * self.scaling).to(kind)


class VisionGraph(nn.Module):
    """Patches to merged embeddings and feature maps; a patch sees those of its own frame.

    Args:
        tower: The vision model of a Qwen3-VL.
        settings: The model's.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, tower: nn.Module, settings: VisionSettings) -> None:
        super().__init__()
        self.tower = tower
        mean, deviation = (torch.from_numpy(one) for one in scaling(settings))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)
        config: Any = tower.config
        self.layers = [int(layer) for layer in config.deepstack_visual_indexes]
        if len(self.layers) != DEEPSTACK:
            raise ExportError(f"{len(self.layers)} feature maps: the language graph takes {DEEPSTACK}")

    def forward(
        self, patches: Tensor, pos_idx: Tensor, pos_w: Tensor, pos_ids: Tensor, seg: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Encode patches.

        Args:
            patches: uint8 ``[P, patch]``.
            pos_idx: int64 ``[P, 4]``.
            pos_w: float32 ``[P, 4]``.
            pos_ids: int64 ``[P, 2]``.
            seg: int64 ``[P]``.

        Returns:
            Merged embeddings float32 ``[P / 4, D]`` and feature maps float32 ``[3, P / 4, D]``.
        """
        tower: Any = self.tower
        weight: Tensor = tower.patch_embed.proj.weight
        kind = weight.dtype
        # Scaled here, as levels are a quarter of the bytes on their way, and a GPU takes no time for it.
        pixels = (patches.float() - self.mean) / self.deviation
        # Patches do not overlap, so their convolution is one product.
        states = nn.functional.linear(pixels.to(kind), weight.flatten(1), tower.patch_embed.proj.bias)
        learned = tower.pos_embed(pos_idx).float() * pos_w[:, :, None]
        states = states + learned.sum(1).to(kind)
        cosine, sine = tower.rotary_pos_emb(states, pos_ids)
        zero = torch.zeros((), dtype=torch.float32, device=seg.device)
        mask = torch.where(seg[:, None] == seg[None, :], zero, zero + MASKED)[None, :, :]
        maps = []
        for place, block in enumerate(tower.blocks):
            states = states + _attend(block.attn, block.norm1(states), cosine, sine, mask)
            states = states + block.mlp(block.norm2(states))
            if place in self.layers:
                maps.append(tower.deepstack_merger_list[self.layers.index(place)](states))
        return tower.merger(states).float(), torch.stack(maps).float()


def _attend(attention: Any, states: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
    """Attention ``[P, D]`` over all patches under a mask ``[1, P, P]``; angles and softmax in float32."""
    count = states.shape[0]
    heads = attention.qkv(states).reshape(count, 3, attention.num_heads, -1).permute(1, 2, 0, 3)
    query, key = (_rotate(one.float(), cosine.float(), sine.float()).to(states.dtype) for one in (heads[0], heads[1]))
    scores = torch.matmul(query, key.transpose(1, 2)).float() * attention.scaling + mask
    mixed = torch.matmul(torch.softmax(scores, dim=-1).to(states.dtype), heads[2])
    output: Tensor = attention.proj(mixed.transpose(0, 1).reshape(count, -1))
    return output


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = states.shape[-1] // 2
    turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return states * cosine + turned * sine


def _axes(sections: list[int], frequencies: int) -> Tensor:
    """The axis of each frequency: time, height and width take turns until height's and width's shares are used up."""
    axis = torch.zeros(frequencies, dtype=torch.int64)
    for dimension in (1, 2):
        axis[dimension : sections[dimension] * 3 : 3] = dimension
    return axis


class _Float32Norm(nn.Module):
    """A layer norm that computes in float32 whatever its input's type is."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm.float()

    def forward(self, states: Tensor) -> Tensor:
        normed: Tensor = self.norm(states.float())
        return normed.to(states.dtype)


def to_precision(model: nn.Module, precision: Precision) -> nn.Module:
    """Cast a backbone or tower, which is changed, in place; norms stay in float32.

    The backbone's own norms compute in float32 and are cast as they are; the tower's are kept in float32, and so are
    frequencies of positions, which transformers never casts.
    """
    if precision == "fp32":
        return model.float()
    frequencies = {name: one.clone() for name, one in model.named_buffers() if name.endswith("inv_freq")}
    model.to(TYPES[precision])
    for place, one in frequencies.items():
        owner, _, own = place.rpartition(".")
        setattr(model.get_submodule(owner), own, one)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, _Float32Norm(child))
    return model
