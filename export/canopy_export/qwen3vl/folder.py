"""A Qwen3-VL folder, read without loading a weight: what the host must know of it, and its tokenizer in chat form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from canopy_backend.errors import ExportError
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.reading import UNREADABLE, told
from canopy_backend.templates import chat_turns

MODEL_TYPE: Final = "qwen3_vl"
#: Pixel budgets of the embedding recipe; a model's own are taken where they are smaller.
_IMAGE_PIXELS: Final = (4096, 1_843_200)
_VIDEO_PIXELS: Final = (4096, 15_728_640)


def is_qwen3vl(folder: Path) -> bool:
    """Whether a folder's configuration is that of a Qwen3-VL."""
    file = folder / "config.json"
    return file.is_file() and read_json(file).get("model_type") == MODEL_TYPE


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of the model's folder.

    Raises:
        ExportError: The file is missing, or holds something else.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise ExportError(f"{file}: not found; is this a Qwen3-VL folder?") from None
    except UNREADABLE as error:
        raise ExportError(f"{file}: not a JSON object ({told(error)})") from None


def vision_settings(folder: Path) -> VisionSettings:
    """Token ids, sizes and pixel budgets of a model.

    Raises:
        ExportError: A file or a field is missing, or the vision tower is not one that the host's code knows.
    """
    config = read_json(folder / "config.json")
    image = read_json(folder / "preprocessor_config.json")
    video = read_json(folder / "video_preprocessor_config.json")
    try:
        vision = config["vision_config"]
        side = round(vision["num_position_embeddings"] ** 0.5)
        if side * side != vision["num_position_embeddings"]:
            raise ExportError(f"{folder}: {vision['num_position_embeddings']} learned positions are not a square table")
        return VisionSettings(
            image_token=config["image_token_id"],
            video_token=config["video_token_id"],
            vision_start=config["vision_start_token_id"],
            vision_end=config["vision_end_token_id"],
            grid_side=side,
            hidden=config["text_config"]["hidden_size"],
            patch=vision["patch_size"],
            merge=vision["spatial_merge_size"],
            temporal=vision["temporal_patch_size"],
            image_pixels=_budget(image["size"], _IMAGE_PIXELS),
            video_pixels=_budget(video["size"], _VIDEO_PIXELS),
            mean=tuple(image["image_mean"]),
            deviation=tuple(image["image_std"]),
        )
    except KeyError as error:
        raise ExportError(f"{folder}: no {error} in its configuration") from None


def chat_tokenizer(file: Path, instruction: str) -> Tokenizer:
    """A tokenizer that puts the turns of a chat around each text, as other tokenizers put their special tokens.

    Args:
        file: The model's ``tokenizer.json``.
        instruction: What the system turn says.

    Returns:
        The tokenizer. Markers that a text spells are text for it: only the turns it adds itself are special.

    Raises:
        ExportError: The file is no byte-level tokenizer, or lacks a marker.
    """
    content = read_json(file)
    try:
        plain = Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing narrower
        raise ExportError(f"{file}: {error}") from None
    if content.get("model", {}).get("type") != "BPE" or not plain.get_added_tokens_decoder():
        raise ExportError(f"{file}: not a byte-level tokenizer with special tokens")
    turns = dict(zip(("<head>", "<tail>"), chat_turns(instruction), strict=True))
    special = {
        name: {"id": name, "ids": encoding.ids, "tokens": encoding.tokens}
        for name, encoding in ((name, plain.encode(turn, add_special_tokens=False)) for name, turn in turns.items())
    }
    added = {int(one["id"]) for one in content["added_tokens"]}
    if not added.issuperset(one["ids"][0] for one in special.values()):
        raise ExportError(f"{file}: its special tokens are not those of the chat's turns")
    content["added_tokens"] = []
    content["post_processor"] = _turns_around(special)
    return Tokenizer.from_str(json.dumps(content))


def _turns_around(special: dict[str, Any]) -> dict[str, Any]:
    head, tail = ({"SpecialToken": {"id": name, "type_id": 0}} for name in special)
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    return {
        "type": "TemplateProcessing",
        "single": [head, texts[0], tail],
        "pair": [head, *texts, tail],
        "special_tokens": special,
    }


def _budget(size: dict[str, int], recipe: tuple[int, int]) -> tuple[int, int]:
    return min(size["shortest_edge"], recipe[0]), min(size["longest_edge"], recipe[1])
