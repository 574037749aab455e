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
from tokenizers import Tokenizer

from canopy_export.qwen3vl.tiny_tokenizer import build_tokenizer

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
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    save: Callable[[Path], None] = random_model(tiny_config(tokenizer), seed).save_pretrained
    save(folder)
    _write_processor(folder)
    return folder


def tiny_config(tokenizer: Tokenizer) -> Any:
    """Configuration of the tiny model: four layers each, three of them with DeepStack."""
    from transformers import Qwen3VLConfig

    ids = tokenizer.get_vocab()

    return Qwen3VLConfig(
        text_config={
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5_000_000,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1, 2],
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


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
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(_SPREAD * noise)
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
