"""Rows: an item, its tree and its vector on their way into Milvus and back.

Milvus measures strings in bytes and ends them at 65,535. Item and tree are therefore cut into pieces and stored as
arrays of strings, which hold as much as one call may carry; whatever is too long even for that is told by name.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidItem, LimitExceeded, RetrievalError
from canopy_backend.items import ImageItem, Item, Modality, TableItem, TextItem, VideoItem, decode_item, encode_item
from canopy_backend.tree import content_hash, decode_tree

#: Longest string that Milvus stores in one field or array element, in bytes.
MAX_STRING_BYTES: Final = 65_535
#: Pieces that an array field of ours can hold.
MAX_PIECES: Final = 1024
#: Longest id: 512 code points of four bytes.
MAX_ID_BYTES: Final = 2048
MAX_SOURCE_BYTES: Final = 4096
MAX_TITLE_BYTES: Final = 1024
#: Longest item that is stored, its JSON without the tree. A call to Milvus may carry 64 MB.
MAX_ITEM_BYTES: Final = 16 * 1024 * 1024
#: Longest row; a tree that would lead over it is left out and made again when the item is used.
MAX_ROW_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class IndexedItem:
    """What the ``index`` model makes of an item.

    Attributes:
        item: The item; its ``tree`` is not looked at.
        tree: The item's tree blob; empty to store none.
        embedding: float32 ``[D]``, the vector of the whole item.
    """

    item: Item
    tree: bytes
    embedding: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """An item that a search found.

    Attributes:
        item: The item with its ``tree`` filled where one is stored, ready to be compressed.
        score: Cosine of the query and the item, or the fused rank score of a hybrid search; higher is better.
        modality: The item's modality.
    """

    item: Item
    score: float
    modality: Modality


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row as Milvus takes it, with its size in bytes (close enough to keep calls under their limit)."""

    id: str
    modality: Modality
    values: dict[str, Any]
    size: int


def encode_row(row: IndexedItem, *, dimension: int, revision: str, words: bool) -> Row:
    """Check one indexed item and lay it out.

    Args:
        row: The item, its tree and its vector.
        dimension: Length that the vector must have.
        revision: Encoder revision of the collection; the tree must be of the same.
        words: Whether the collection indexes words.

    Raises:
        InvalidItem: Id, source, tree or vector cannot be stored as they are.
        EncoderMismatch: The tree was made by another encoder.
        LimitExceeded: Source or item are longer than Milvus can hold.
    """
    item = row.item
    payload = item_payload(item)
    _check_text(item, "id", item.id, MAX_ID_BYTES)
    _check_text(item, "source", item.source, MAX_SOURCE_BYTES)
    if len(payload) > MAX_ITEM_BYTES:
        raise _too_long(item, "bytes", len(payload), MAX_ITEM_BYTES, "max_stored_item_bytes")
    vector = _check_vector(item, row.embedding, dimension)
    if row.tree:
        decode_tree(row.tree, item=item, revision=revision)
    values: dict[str, Any] = {
        "item_id": item.id,
        "source": item.source,
        "title": _cut(item.title, MAX_TITLE_BYTES),
        "content_hash": content_hash(item).hex(),
        "enc_rev": revision,
        "item": _pieces(payload),
        "dense": vector,
    }
    size = len(payload) + vector.nbytes
    if words:
        values["text"] = _cut(surface_text(item), MAX_STRING_BYTES)
        size += len(values["text"].encode())
    stored = bool(row.tree) and size + len(row.tree) * 4 // 3 <= MAX_ROW_BYTES
    values["tree"] = _pieces(base64.b64encode(row.tree)) if stored else []
    values["tree_stored"] = stored
    size += sum(map(len, values["tree"]))
    return Row(item.id, item.modality, values, size)


def decode_row(entity: Mapping[str, Any]) -> Item:
    """The item of a row, with its tree.

    Raises:
        RetrievalError: The row holds no item that this version can read.
    """
    name = entity.get("item_id")
    try:
        item = decode_item("".join(entity["item"]).encode())
        if entity["tree_stored"]:
            item.tree = base64.b64decode("".join(entity["tree"]), validate=True)
    except (InvalidItem, KeyError, TypeError, ValueError) as error:  # of base64 and of surrogates among them
        raise RetrievalError(f"row {name!r:.80} is not one of this project's: {error}") from None
    return item


def item_payload(item: Item) -> bytes:
    """The item as it is stored: JSON without its tree.

    Raises:
        InvalidItem: A text holds half of a surrogate pair, which no encoding can write.
    """
    try:
        return encode_item(msgspec.structs.replace(item, tree=None))
    except UnicodeEncodeError:
        raise InvalidItem("holds half of a surrogate pair", item_id=_printable(item.id)) from None


def surface_text(item: Item) -> str:
    """The words of an item for keyword search, title first; NUL, which some servers end strings at, is a space."""
    parts: list[str] = [item.title]
    if isinstance(item, TextItem):
        parts.append(item.text)
    elif isinstance(item, TableItem):
        parts.append(item.caption)
        parts.extend(" ".join(row) for row in (*item.header_rows, item.columns, *item.rows))
    elif isinstance(item, VideoItem):
        parts.extend(cue.text for cue in item.segments)
    elif isinstance(item, ImageItem):
        parts.append(item.caption)
    return "\n".join(filter(None, parts)).replace("\0", " ")


def check_vector(vector: npt.ArrayLike, dimension: int) -> npt.NDArray[np.float32]:
    """``vector`` as float32 ``[dimension]``.

    Raises:
        ValueError: It has another shape, is not finite, or is zero, which has no direction to compare.
    """
    array = np.ascontiguousarray(vector, dtype=np.float32)
    if array.shape != (dimension,):
        raise ValueError(f"has shape {list(array.shape)}, the corpus has [{dimension}]")
    if not np.isfinite(array).all():
        raise ValueError("holds NaN or infinite values")
    if not array.any():
        raise ValueError("is zero")
    return array


def _check_vector(item: Item, vector: npt.ArrayLike, dimension: int) -> npt.NDArray[np.float32]:
    try:
        return check_vector(vector, dimension)
    except (ValueError, TypeError) as error:
        raise InvalidItem(str(error), item_id=item.id, field="embedding") from None


def _check_text(item: Item, name: str, text: str, limit: int) -> None:
    if name == "id" and not 1 <= len(text) <= 512:
        raise InvalidItem(f"has {len(text)} characters, 1 to 512 are allowed", item_id=text[:80], field=name)
    if "\0" in text:
        raise InvalidItem("holds a NUL character, which no key may", item_id=item.id, field=name)
    if (size := len(text.encode())) > limit:
        raise _too_long(item, f"bytes of {name}", size, limit, f"max_{name}_bytes")


def _too_long(item: Item, what: str, actual: int, limit: int, name: str) -> LimitExceeded:
    return LimitExceeded(f"item {item.id!r:.80}: {what}", actual=actual, limit=limit, name=name)


def _pieces(payload: bytes) -> list[str]:
    """Cut UTF-8 into strings of at most ``MAX_STRING_BYTES`` bytes, never inside a character."""
    pieces: list[str] = []
    start = 0
    while start < len(payload):
        end = _character_end(payload, start + MAX_STRING_BYTES)
        pieces.append(payload[start:end].decode())
        start = end
    return pieces


def _cut(text: str, limit: int) -> str:
    """The longest start of ``text`` that fits ``limit`` bytes; NUL becomes a space."""
    encoded = text.replace("\0", " ").encode()
    return encoded[: _character_end(encoded, limit)].decode()


def _character_end(encoded: bytes, end: int) -> int:
    """The last place at or before ``end`` where a character of UTF-8 ends."""
    if end >= len(encoded):
        return len(encoded)
    while encoded[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
