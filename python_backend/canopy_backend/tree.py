"""Tree blobs: an item's fragments, hierarchy and node vectors as one checked run of bytes.

    header   60 bytes, see ``_HEADER``; its last field is a CRC-32 of every other byte of the blob
    spans    int32   [F, 2]
    nodes    int32   [4, N]   parent, first, last, depth
    tokens   int32   [F + 1]  the reader's tokens of each fragment, then of the prefix
    vectors  float16 [N, D]

All little-endian. A blob is accepted for one item only, told by a hash of what is encoded of it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import EncoderMismatch, InvalidItem
from canopy_backend.fragments import Fragments, Unit
from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.items import ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.packing import runs

MAGIC: Final = b"CNPYTREE"
VERSION: Final = 1
_FLOAT16: Final = 1
_INFINITY: Final = 0x7C00
#: Vector components that are joined for one check.
_CHECKED_VALUES: Final = 1 << 20

#: Units by their code in blobs and plans; append only.
UNITS: Final[tuple[Unit, ...]] = ("text", "table", "video", "image")

# magic, version, dtype, unit, branching, dimension, fragments, nodes, encoder, content, reader; then the checksum
_HEADER: Final = struct.Struct("<8sHBBHHII8s16s8s")
_CHECKSUM: Final = struct.Struct("<I")
_BODY: Final = _HEADER.size + _CHECKSUM.size


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """An item's hierarchy with a vector for each node.

    Attributes:
        revision: Encoder revision that made the vectors, 16 hex digits.
        content: Hash of the item's encoded content, 16 bytes, from :func:`content_hash`.
        fragments: The item's fragments.
        hierarchy: The nodes over them.
        vectors: float16 ``[N, D]``, unit length.
        tokens: int32 ``[F + 1]``, the reader's tokens of each fragment and then of the prefix.
        reader: Revision of the tokenizer that counted them, 8 bytes.
    """

    revision: str
    content: bytes
    fragments: Fragments
    hierarchy: Hierarchy
    vectors: npt.NDArray[np.float16]
    tokens: npt.NDArray[np.int32]
    reader: bytes = bytes(8)


def content_hash(item: Item) -> bytes:
    """Hash of everything of an item that its vectors depend on, 16 bytes.

    Id, source and address are left out: an item that moved keeps its tree. Pictures count where an item brings them,
    whatever the encoder reads; one without has the hash that it always had.
    """
    parts: tuple[object, ...]
    if isinstance(item, TextItem):
        parts = (item.modality, item.title, item.text)
    elif isinstance(item, TableItem):
        parts = (item.modality, item.title, item.caption, item.header_rows, item.columns, item.rows)
    elif isinstance(item, VideoItem):
        cues = [(float(cue.start), float(cue.end), cue.text) for cue in item.segments]
        parts = (item.modality, item.title, float(item.duration_s), cues)
        if item.frames:
            parts += ([(float(frame.at_s), frame.image) for frame in item.frames],)
    else:
        parts = (item.modality, item.title, item.caption)
        if item.image is not None:
            parts += (item.image,)
    # MessagePack writes every length in front of its value, so no two different items give the same bytes.
    return blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()


def encode_tree(tree: Tree) -> bytes:
    """The blob of a tree.

    Raises:
        ValueError: The tree's arrays do not belong together, or its hierarchy is not the balanced one.
    """
    hierarchy, vectors = tree.hierarchy, tree.vectors
    n_fragments, n_nodes = len(tree.fragments), hierarchy.size
    shapes = (n_nodes, n_fragments + 1, 16, 8, 16)
    found = (len(vectors), len(tree.tokens), len(tree.revision), len(tree.reader), len(tree.content))
    if shapes != found:
        raise ValueError(f"a tree of {n_fragments} fragments and {n_nodes} nodes has parts of sizes {found}")
    table = _table_bytes(hierarchy)
    if table != _node_table(n_fragments, hierarchy.branching):
        raise ValueError(f"a tree of {n_fragments} fragments needs the balanced hierarchy over them")
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        _FLOAT16,
        UNITS.index(tree.fragments.unit),
        hierarchy.branching,
        vectors.shape[1],
        n_fragments,
        n_nodes,
        bytes.fromhex(tree.revision),
        tree.content,
        tree.reader,
    )
    body = b"".join(
        (
            tree.fragments.spans.astype("<i4", copy=False).tobytes(),
            table,
            tree.tokens.astype("<i4", copy=False).tobytes(),
            vectors.astype("<f2", copy=False).tobytes(),
        )
    )
    return header + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))) + body


def revision_of(blob: bytes) -> str:
    """Encoder revision that made a tree blob, 16 hex digits, told from its header alone.

    Raises:
        ValueError: It does not begin as a tree blob does.
    """
    if len(blob) < _BODY or not blob.startswith(MAGIC):
        raise ValueError(f"{len(blob)} bytes that are not a tree")
    encoder: bytes = _HEADER.unpack_from(blob)[8]
    return encoder.hex()


def decode_tree(blob: bytes, *, item: Item, revision: str) -> Tree:
    """Check a blob and read it; the arrays are views of it.

    Args:
        blob: What :func:`encode_tree` wrote.
        item: The item that came with it.
        revision: Revision of the encoder that is in use.

    Raises:
        InvalidItem: Field ``tree``; the blob is damaged, of another format or of another item.
        EncoderMismatch: Its vectors were made by another encoder; names both.
    """
    tree = _read(blob, item, bytes.fromhex(revision))
    try:
        _check([item], [tree])
    except InvalidItem as error:
        raise _bad(item, error.reason) from None  # there is no request that the item could have a place in
    return tree


def decode_trees(items: Sequence[Item], *, revision: str) -> list[Tree]:
    """The trees that items bring along, as :func:`decode_tree` reads each; an item without one is refused.

    Raises:
        InvalidItem: As :func:`decode_tree`; ``index`` is set.
        EncoderMismatch: As :func:`decode_tree`.
    """
    encoder = bytes.fromhex(revision)
    trees: list[Tree] = []
    try:
        for item in items:
            trees.append(_read(item.tree or b"", item, encoder))
    except InvalidItem as error:
        raise error.at(len(trees)) from None
    # The checks of the arrays, a few calls for all items together; bounded, for they join the vectors.
    for first, last in runs([tree.vectors.size for tree in trees], _CHECKED_VALUES):
        try:
            _check(items[first:last], trees[first:last])
        except InvalidItem as error:
            raise error.at(first + (error.index or 0)) from None
    return trees


def _read(blob: bytes, item: Item, revision: bytes) -> Tree:
    """A tree whose header, size, checksum, content and nodes are right; its arrays are not looked at."""
    if len(blob) < _BODY:
        raise _bad(item, f"{len(blob)} bytes are too few for a tree")
    header = _HEADER.unpack_from(blob)
    magic, version, dtype, unit, branching, dimension, n_fragments, n_nodes, encoder, content, reader = header
    if magic != MAGIC or version != VERSION or dtype != _FLOAT16:
        raise _bad(item, f"not a tree of version {VERSION}")
    after_spans = _BODY + 8 * n_fragments
    after_nodes = after_spans + 16 * n_nodes
    after_tokens = after_nodes + 4 * (n_fragments + 1)
    end = after_tokens + 2 * n_nodes * dimension
    if len(blob) != end:
        raise _bad(item, f"{len(blob)} bytes where its header promises {end}")
    view = memoryview(blob)
    if zlib.crc32(view[_BODY:], zlib.crc32(view[: _HEADER.size])) != _CHECKSUM.unpack_from(blob, _HEADER.size)[0]:
        raise _bad(item, "damaged: its checksum is wrong")
    if encoder != revision:
        raise EncoderMismatch(
            f"item ({item.id!r:.80}), field 'tree': made by encoder {encoder.hex()}, this server runs "
            f"{revision.hex()}; index the item again"
        )
    if content != content_hash(item):
        raise _bad(item, "made for other content than the item's")
    if branching < 2 or not dimension or not n_fragments or n_nodes >= 2 * n_fragments or unit >= len(UNITS):
        raise _bad(item, "its header holds values that no tree has")
    if UNITS[unit] != item.modality:
        raise _bad(item, f"made for modality {UNITS[unit]!r}")
    if blob[after_spans:after_nodes] != _node_table(n_fragments, branching):
        raise _bad(item, "its nodes are not the balanced hierarchy over its fragments")
    spans = np.ndarray((n_fragments, 2), "<i4", blob, _BODY)
    tokens = np.ndarray((n_fragments + 1,), "<i4", blob, after_nodes)
    vectors = np.ndarray((n_nodes, dimension), "<f2", blob, after_tokens)
    fragments = Fragments(UNITS[unit], spans)
    return Tree(encoder.hex(), content, fragments, balanced(n_fragments, branching), vectors, tokens, reader)


def _check(items: Sequence[Item], trees: Sequence[Tree]) -> None:
    """Refuse arrays that are whole but say something that cannot be; ``index`` is set."""
    spans = np.concatenate([tree.fragments.spans for tree in trees])
    ends = np.cumsum([len(tree.fragments) for tree in trees])
    first, last = ends - [len(tree.fragments) for tree in trees], ends - 1
    expected = np.empty(len(spans), np.int32)
    expected[1:] = spans[:-1, 1]
    expected[first] = 0
    wrong = spans[:, 0] != expected
    wrong[last] |= spans[last, 1] != [_extent(item) for item in items]
    if wrong.any():
        _refuse(items, wrong, ends, "its fragments do not cover the item")
    wrong = spans[:, 0] > spans[:, 1]
    if wrong.any():
        _refuse(items, wrong, ends, "it holds a negative length")
    wrong = np.concatenate([tree.tokens for tree in trees]) < 0
    if wrong.any():
        _refuse(items, wrong, ends + np.arange(1, len(items) + 1), "it holds a negative length")
    bits = np.concatenate([tree.vectors.view(np.uint16).ravel() for tree in trees])
    # Without its sign, a float16 is finite when its bits are below those of infinity.
    if np.bitwise_and(bits, 0x7FFF, out=bits).max() >= _INFINITY:
        sizes = np.cumsum([tree.vectors.size for tree in trees])
        _refuse(items, bits >= _INFINITY, sizes, "its vectors are not finite")


def _refuse(items: Sequence[Item], wrong: npt.NDArray[np.bool_], ends: npt.NDArray[np.integer], reason: str) -> None:
    """Name the item that the first wrong value belongs to; ``ends`` is where the values of each item end."""
    index = int(np.searchsorted(ends, np.argmax(wrong), side="right"))
    raise _bad(items[index], reason).at(index)


def _extent(item: Item) -> int:
    """Where an item's last fragment ends, in its unit."""
    if isinstance(item, TextItem):
        return len(item.text)
    if isinstance(item, TableItem):
        return len(item.rows)
    if isinstance(item, ImageItem):
        return 1
    return max(1, round(item.duration_s * 1000))


@lru_cache(maxsize=256)
def _node_table(n_fragments: int, branching: int) -> bytes:
    """The node table of the balanced hierarchy."""
    return _table_bytes(balanced(n_fragments, branching))


def _table_bytes(hierarchy: Hierarchy) -> bytes:
    table = np.stack([hierarchy.parent, hierarchy.first, hierarchy.last, hierarchy.depth])
    return table.astype("<i4", copy=False).tobytes()


def _bad(item: Item, reason: str) -> InvalidItem:
    return InvalidItem(reason, item_id=item.id, field="tree")
