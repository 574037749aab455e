"""A local model folder, read without loading a weight: sentence-transformers, or a Qwen3-VL embedding model."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from canopy_backend.errors import ExportError
from canopy_backend.manifest import CARD_FILE, AdapterCard, NodeEncoding, Pooling, file_sha256
from canopy_backend.reading import UNREADABLE, told
from canopy_backend.templates import NODE_INSTRUCTION, QUERY_INSTRUCTION, TEMPLATE_HASH, chat_turns
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.qwen3vl.folder import chat_tokenizer, is_qwen3vl

#: Names of one pooling mode in the two generations of ``1_Pooling/config.json``.
_POOLING_FLAGS: Final[dict[str, Pooling]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_POOLING_NAMES: Final[dict[str, Pooling]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
#: Modules of a folder that the graphs reproduce; anything else would change the vectors.
_MODULES: Final = {"Transformer", "Pooling", "Normalize"}
#: ONNX operator set of the graphs.
OPSET: Final = 17
_ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")
#: Files of a Qwen3-VL folder that change what its encoder reads.
_PIXEL_FILES: Final = ("preprocessor_config.json", "video_preprocessor_config.json")
#: Most tokens that a Qwen3-VL reads at once here. It could read more; memory grows with the square.
_QWEN3VL_WINDOW: Final = 2048

#: Which of the two encoders: a model that reads chats is told whether it has a query or an item's node before it.
Role: TypeAlias = Literal["query", "node"]


@dataclass(frozen=True, slots=True)
class Source:
    """What an export needs to know about a model folder before it loads the weights.

    Attributes:
        path: The folder.
        name: The model's name as its configuration gives it, else the folder's.
        revision: sha256 over the weights, the configuration and the tokenizer, hexadecimal.
        pooling: How token states become one vector.
        window: Most tokens of one text, special tokens included.
        dimension: Size of a vector.
        chat: Whether the model reads the turns of a chat, with an instruction.
    """

    path: Path
    name: str
    revision: str
    pooling: Pooling
    window: int
    dimension: int
    chat: bool = False

    @property
    def tokenizer(self) -> Path:
        """The model's own tokenizer file, without the turns of a chat."""
        return self.path / "tokenizer.json"

    def write_tokenizer(self, target: Path, role: Role) -> None:
        """Write the ``tokenizer.json`` of one encoder; that of a chat model has the turns as its special tokens."""
        if self.chat:
            instruction = QUERY_INSTRUCTION if role == "query" else NODE_INSTRUCTION
            chat_tokenizer(self.tokenizer, instruction).save(str(target))
        else:
            target.write_bytes(self.tokenizer.read_bytes())

    def encoder_tokenizer(self, role: Role) -> EncoderTokenizer:
        """The tokenizer of one encoder, as an export writes it."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tokenizer.json"
            self.write_tokenizer(file, role)
            return EncoderTokenizer(file, self.window)


def read_source(path: Path, *, name: str | None = None) -> Source:
    """Read a sentence-transformers folder, or that of a Qwen3-VL embedding model, of which the text side is meant.

    Args:
        path: Folder with ``config.json``, ``tokenizer.json``, the weights, and ``modules.json`` or the files of a
            Qwen3-VL's image and video processor.
        name: Name to record; by default the one in the configuration.

    Raises:
        ExportError: A file is missing, or the folder holds a module that the graphs cannot reproduce.
    """
    path = Path(path)
    config = _read(path / "config.json")
    if not (path / "tokenizer.json").is_file():
        raise ExportError(f"{path}: no tokenizer.json; only models with a fast tokenizer can be exported")
    if is_qwen3vl(path):
        return _qwen3vl(path, config, name)
    modules = {str(module["type"]).rsplit(".", 1)[-1]: str(module["path"]) for module in _read(path / "modules.json")}
    unknown = sorted(set(modules) - _MODULES)
    if unknown or "Transformer" not in modules or "Pooling" not in modules:
        raise ExportError(f"{path}: modules {sorted(modules)}; expected a Transformer, a Pooling and a Normalize")
    dimension = int(config["hidden_size"])
    return Source(
        path=path,
        name=name or str(config.get("_name_or_path") or path.name),
        revision=_revision(path),
        pooling=_pooling(path / modules["Pooling"] / "config.json"),
        window=_window(path, config),
        dimension=dimension,
    )


def _qwen3vl(path: Path, config: dict[str, Any], name: str | None) -> Source:
    """The text side of a Qwen3-VL; pixels and the chat's turns are part of its revision."""
    try:
        text = config["text_config"]
        dimension, positions = int(text["hidden_size"]), int(text["max_position_embeddings"])
    except (KeyError, TypeError, ValueError):
        raise ExportError(f"{path / 'config.json'}: no usable text_config") from None
    turns = "\0".join(part for instruction in (QUERY_INSTRUCTION, NODE_INSTRUCTION) for part in chat_turns(instruction))
    parts = f"{_revision(path)}\0{_revision_of(path, _PIXEL_FILES)}\0{turns}"
    return Source(
        path=path,
        name=name or path.name,
        revision=hashlib.sha256(parts.encode()).hexdigest(),
        pooling="last",
        window=min(_QWEN3VL_WINDOW, positions),
        dimension=dimension,
        chat=True,
    )


def adapter_revision(adapter: Path) -> str:
    """sha256 over the files of a LoRA adapter's folder, hexadecimal.

    Raises:
        ExportError: The folder holds no adapter.
    """
    config, *weights = _ADAPTER_FILES
    if not (adapter / config).is_file() or not any((adapter / name).is_file() for name in weights):
        raise ExportError(f"{adapter}: no adapter here; expected {config} and {weights[0]}")
    return _revision_of(adapter, _ADAPTER_FILES)


def node_encoding_of(source: Source, adapter: Path | None, given: NodeEncoding | None) -> NodeEncoding:
    """How the nodes of a model are encoded: as given, else as its adapter was trained for, else each by itself.

    Args:
        source: The base model.
        adapter: LoRA adapter folder, with or without a card.
        given: What was asked for.

    Raises:
        ExportError: The adapter's card tells of another base, text template or node encoding, or the model's pooling
            does not allow the encoding.
    """
    encoding = given
    if adapter is not None and (adapter / CARD_FILE).is_file():
        card = AdapterCard.load(adapter)
        encoding = given or card.node_encoding
        for what, trained, used in (
            ("base_revision", card.base_revision, source.revision),
            ("template", card.template, TEMPLATE_HASH),
            ("pooling", card.pooling, source.pooling),
            ("dimension", card.dimension, source.dimension),
            ("window", card.window, source.window),
            ("node_encoding", card.node_encoding, encoding),
        ):
            if trained != used:
                raise ExportError(f"{adapter}: the adapter was trained for {what} {trained!r}, not {used!r}")
    if encoding == "contextual" and source.pooling != "mean":
        raise ExportError(
            f"{source.path}: node encoding 'contextual' pools means of token states, and this model has "
            f"{source.pooling} pooling"
        )
    return encoding or "separate"


def _revision_of(folder: Path, patterns: tuple[str, ...]) -> str:
    """sha256 over the names and contents of the files of a folder that match, hexadecimal."""
    digest = hashlib.sha256()
    for file in sorted({found for pattern in patterns for found in folder.glob(pattern)}):
        digest.update(f"{file.name}\0{file_sha256(file)}\n".encode())
    return digest.hexdigest()


def _revision(path: Path) -> str:
    if not any(True for pattern in _WEIGHTS for _ in path.glob(pattern)):
        raise ExportError(f"{path}: no weights ({' or '.join(_WEIGHTS)})")
    return _revision_of(path, (*_WEIGHTS, "config.json", "tokenizer.json"))


def _pooling(path: Path) -> Pooling:
    config = _read(path)
    named = config.get("pooling_mode")
    modes = [_POOLING_NAMES.get(str(named))] if named else []
    modes += [_POOLING_FLAGS.get(key) for key, value in config.items() if key.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] is None:
        raise ExportError(f"{path}: exactly one of mean, cls and last-token pooling is supported")
    return modes[0]


def _window(path: Path, config: dict[str, Any]) -> int:
    positions = int(config.get("max_position_embeddings", 0))
    file = path / "sentence_bert_config.json"
    stated = _read(file).get("max_seq_length") if file.is_file() else None
    window = int(stated or positions)
    if window < 8:
        raise ExportError(f"{path}: neither max_seq_length nor max_position_embeddings gives a usable window")
    return min(window, positions) if positions else window


def _read(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise ExportError(f"{path}: not found; is this a sentence-transformers folder?") from None
    except UNREADABLE as error:
        raise ExportError(f"{path}: not JSON ({told(error)})") from None
