"""A tiny Qwen3-VL-Embedding with random weights: the real model and processor classes, at a size for tests.

The folder has what the published one has: configuration, weights, fast tokenizer, chat template, image and video
preprocessing. Its vectors mean nothing; every code path, shape and file is the real one's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from canopy_export.qwen3vl.tiny_tokenizer import build_tokenizer

_ROTARY: Final = {"rope_type": "default", "rope_theta": 5_000_000, "mrope_interleaved": True}
#: The family's turn format, in the part that an embedding input uses: string or list content, images and videos.
CHAT_TEMPLATE: Final = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
#: Settings of the language backbone and of the vision tower, by size: four layers each, narrow or wide enough for
#: reduced precision to average out, or those of the 2B model.
SIZES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "tiny": (
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_parameters": {**_ROTARY, "mrope_section": [4, 2, 2]},
        },
        {
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1, 2],
        },
    ),
    "small": (
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {**_ROTARY, "mrope_section": [8, 4, 4]},
        },
        {
            "depth": 4,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1, 2],
        },
    ),
    "2b": (
        {
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262_144,
            "rope_parameters": {**_ROTARY, "mrope_section": [24, 20, 20]},
        },
        {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    ),
}
#: Standard deviation of the random weights: large enough that leaving a part out changes a vector visibly.
_SPREAD: Final = 0.15
_PATCH: Final = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
_COLOUR: Final = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def tiny_qwen3vl(folder: Path, seed: int = 0) -> Path:
    """Write a tiny Qwen3-VL-Embedding; the same seed writes the same weights and tokenizer.

    Args:
        folder: Where to; made if missing.
        seed: Seed of the random weights.

    Returns:
        The folder.
    """
    return random_qwen3vl(folder, seed, "tiny")


def random_qwen3vl(folder: Path, seed: int, size: str) -> Path:
    """Write a model with random weights; arguments as for :func:`tiny_qwen3vl`, ``size`` one of :data:`SIZES`.

    All but the tiny one are stored in bfloat16, as the published one is; ``2b`` needs 10 GB of memory to be made.
    """
    from transformers import Qwen3VLConfig

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.get_vocab()
    text, vision = SIZES[size]
    config = Qwen3VLConfig(
        text_config={"vocab_size": tokenizer.get_vocab_size(), "tie_word_embeddings": True, **text},
        vision_config={"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, **vision},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = random_model(config, seed)
    save: Callable[[Path], None] = (model if size == "tiny" else model.to(torch.bfloat16)).save_pretrained
    save(folder)
    _write_processor(folder)
    return folder


def random_model(config: Any, seed: int) -> Any:
    """A Qwen3-VL with random weights, of any size.

    Norms and biases are random too, so that a graph which leaves one out is caught.
    """
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(seed)
    model: Any = Qwen3VLForConditionalGeneration(config)
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                # States keep their size from layer to layer, whatever the width.
                parameter.normal_(0, min(_SPREAD, parameter.shape[-1] ** -0.5), generator=generator)
    return model


def _write_processor(folder: Path) -> None:
    """The preprocessing files, in the published form and with budgets of a few dozen patches."""
    files: dict[str, Any] = {
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen3VLProcessor",
            "size": {"shortest_edge": 64 * 64, "longest_edge": 160 * 160},
            **_PATCH,
            **_COLOUR,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen3VLVideoProcessor",
            "processor_class": "Qwen3VLProcessor",
            "size": {"shortest_edge": 64 * 64, "longest_edge": 4 * 128 * 128},
            **_PATCH,
            **_COLOUR,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "padding_side": "right",
            "model_max_length": 4096,
            "extra_special_tokens": {
                "image_token": "<|image_pad|>",
                "video_token": "<|video_pad|>",
                "vision_start_token": "<|vision_start|>",
                "vision_end_token": "<|vision_end|>",
            },
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
