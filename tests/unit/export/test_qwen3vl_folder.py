"""A Qwen3-VL folder read without weights: settings, chat tokenizers, and what is told of a broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from canopy_backend.errors import ExportError
from canopy_backend.templates import NODE_INSTRUCTION, QUERY_INSTRUCTION, chat_turns
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.qwen3vl.folder import chat_tokenizer, is_qwen3vl, vision_settings
from canopy_export.qwen3vl.tiny_tokenizer import SPECIAL_TOKENS, build_tokenizer
from canopy_export.source import read_source

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "text_config": {"hidden_size": 2048, "max_position_embeddings": 262144},
    "vision_config": {
        "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2
    },
}  # fmt: skip
#: The published model's.
IMAGE = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
VIDEO = {"size": {"shortest_edge": 4096, "longest_edge": 25165824}}


def write(folder: Path, **changed: Any) -> Path:
    files = {"config.json": CONFIG, "preprocessor_config.json": IMAGE, "video_preprocessor_config.json": VIDEO}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content | changed.get(name.split("_")[0].split(".")[0], {})))
    build_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_settings_of_the_published_sizes(tmp_path: Path) -> None:
    settings = vision_settings(write(tmp_path))
    assert (settings.grid_side, settings.factor, settings.patch_size) == (48, 32, 1536)
    # The embedding recipe's budgets, which are smaller than those of the chat model.
    assert (settings.image_pixels, settings.video_pixels) == ((4096, 1_843_200), (4096, 15_728_640))
    assert is_qwen3vl(tmp_path)


def test_a_source_is_told_by_its_configuration(tmp_path: Path) -> None:
    source = read_source(write(tmp_path), name="Qwen/Qwen3-VL-Embedding-2B")
    assert (source.pooling, source.window, source.dimension, source.chat) == ("last", 2048, 2048, True)
    first = source.revision
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(IMAGE | {"image_mean": [0.4, 0.5, 0.5]}))
    assert read_source(tmp_path).revision != first


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": {"vision_config": {"num_position_embeddings": 2305}}}, "not a square table"),
        ({"config": {"vision_config": {}}}, "no 'num_position_embeddings'"),
        ({"preprocessor": {"size": {}}}, "no 'shortest_edge'"),
    ],
)
def test_a_folder_that_does_not_fit_is_told(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        vision_settings(write(tmp_path, **changed))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ExportError, match="not a JSON object"):
        is_qwen3vl(tmp_path)


def test_turns_stand_around_each_text(tmp_path: Path) -> None:
    source = read_source(write(tmp_path))
    plain = build_tokenizer()
    for role, instruction in (("query", QUERY_INSTRUCTION), ("node", NODE_INSTRUCTION)):
        tokenizer = source.encoder_tokenizer(role)
        head, tail = chat_turns(instruction)
        assert tokenizer.encode(["The harbour"]) == [plain.encode(f"{head}The harbour{tail}").ids]
        assert tokenizer.head == plain.encode(head).ids
        assert tokenizer.tail == plain.encode(tail).ids
        assert tokenizer.room == 2048 - len(tokenizer.head) - len(tokenizer.tail)
        assert tokenizer.encode_plain(["The harbour"]) == [plain.encode("The harbour").ids]


def test_a_tokenizer_without_the_markers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    build_tokenizer().save(str(file))
    content = json.loads(file.read_bytes())
    content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] != "<|im_start|>"]
    file.write_text(json.dumps(content))
    with pytest.raises(ExportError, match="special tokens are not those"):
        chat_tokenizer(file, NODE_INSTRUCTION)
    content["model"]["type"] = "WordPiece"
    file.write_text(json.dumps(content))
    with pytest.raises(ExportError, match=r"tokenizer\.json"):
        chat_tokenizer(file, NODE_INSTRUCTION)


def test_the_small_tokenizer_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = build_tokenizer(), build_tokenizer()
    assert first.to_str() == second.to_str()
    assert first.get_vocab_size() == 400 + len(SPECIAL_TOKENS)
    assert first.decode(first.encode("Grüße, 日本\n  0.5").ids) == "Grüße, 日本\n  0.5"
    first.save(str(tmp_path / "tokenizer.json"))
    assert EncoderTokenizer(tmp_path / "tokenizer.json", 16).head == []
