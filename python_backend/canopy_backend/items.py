"""Items: what a retriever returns, in four modalities, and their JSON form on the wire.

One JSON object an item, told apart by ``modality``. The published schema is ``docs/schema/item.json``, written from
these classes. Fields that are not known are ignored, so an item can carry a caller's own data past us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from canopy_backend.errors import InvalidItem
from canopy_backend.limits import Limits
from canopy_backend.reading import UNREADABLE, told

ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512, description="Stable id, unique in a request.")]
Modality: TypeAlias = Literal["text", "table", "video", "image"]


class _Item(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="modality"):
    """Fields that every item has.

    Attributes:
        id: Stable identity of the item; equal ids mean the same item.
        title: Shown with, and encoded into, every region; never pruned.
        source: Id or path of the document that the item was cut from.
        tree: Tree blob made by the ``index`` model (base64 in JSON); its nodes are not encoded again.
    """

    id: ItemId
    title: str = ""
    source: str = ""
    tree: bytes | None = None


class TextItem(_Item, tag="text", kw_only=True, omit_defaults=True):
    """A passage. Its fragments are sentences; offsets count code points of ``text``."""

    modality: ClassVar[Modality] = "text"
    text: str


class TableItem(_Item, tag="table", kw_only=True, omit_defaults=True):
    """A table. Its fragments are rows; the header goes with every region.

    Attributes:
        columns: The header row next to the data.
        header_rows: Header rows above ``columns``, outermost first, for tables with more than one.
        rows: Data rows; short ones are padded when shown.
        caption: Shown under the title.
    """

    modality: ClassVar[Modality] = "table"
    columns: list[str]
    rows: list[list[str]]
    header_rows: list[list[str]] = []
    caption: str = ""


class Cue(msgspec.Struct, frozen=True):
    """One timed line of a transcript: ``start`` and ``end`` in seconds, half-open."""

    start: float
    end: float
    text: str


class Frame(msgspec.Struct, frozen=True):
    """One picture of a clip: what is seen ``at_s`` seconds after its start, as a PNG, JPEG or WebP file."""

    at_s: float
    image: bytes


class VideoItem(_Item, tag="video", kw_only=True, omit_defaults=True):
    """A clip with its transcript. Its fragments are 30 s segments; a cue belongs to the segments it overlaps.

    Attributes:
        duration_s: Length of the clip in seconds, more than 0.
        segments: Timed transcript lines.
        frames: Pictures of the clip in time order, for encoders that take pixels; the others read the transcript.
        uri: Where the clip itself is.
    """

    modality: ClassVar[Modality] = "video"
    duration_s: float
    segments: list[Cue] = []
    frames: list[Frame] = []
    uri: str = ""


class ImageItem(_Item, tag="image", kw_only=True, omit_defaults=True):
    """An image, always one fragment. A text encoder reads its title and caption.

    Attributes:
        caption: The image in words.
        image: The picture's file as it is, PNG, JPEG or WebP (base64 in JSON), for encoders that take pixels.
        uri: Where the picture is.
    """

    modality: ClassVar[Modality] = "image"
    caption: str = ""
    image: bytes | None = None
    uri: str = ""


#: Longest clip, a week: its milliseconds stay far inside 32 bits.
MAX_DURATION_S: Final = 604_800

Item: TypeAlias = TextItem | TableItem | VideoItem | ImageItem

_decoder = msgspec.json.Decoder(Item)
_encoder = msgspec.json.Encoder()


class _Glance(msgspec.Struct):
    """Just enough of an item to see whether it has a tree, which stays as it is written."""

    tree: msgspec.Raw = msgspec.Raw()


_glance = msgspec.json.Decoder(_Glance)


class _Identity(msgspec.Struct):
    """Just enough of a bad item to name it."""

    id: Any = None


def encode_item(item: Item) -> bytes:
    """The item as one JSON object, UTF-8."""
    return _encoder.encode(item)


def decode_item(payload: bytes) -> Item:
    """Parse and check one item.

    Args:
        payload: One JSON object, UTF-8.

    Raises:
        InvalidItem: Not UTF-8, not JSON, a field of another type, or a value that cannot be (see ``_check``).
    """
    try:
        item = _decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise _validation_error(error, payload) from None
    except msgspec.DecodeError as error:
        raise InvalidItem(f"not a JSON object ({error})") from None
    except UNREADABLE as error:
        raise InvalidItem(told(error)) from None
    _check(item)
    return item


def decode_items(payloads: Sequence[bytes], limits: Limits) -> list[Item]:
    """Parse the items of one request, within limits, ids unique.

    Raises:
        InvalidItem: An item is malformed or repeats an id; ``index`` is set.
        LimitExceeded: Too many items, or one is too large.
    """
    limits.check("max_items", len(payloads), "items of the request")
    items: list[Item] = []
    places: dict[str, int] = {}
    picture_bytes = 0
    for index, payload in enumerate(payloads):
        try:
            item = decode_item(payload)
        except InvalidItem as error:
            raise error.at(index) from None
        pictures = _check_pictures(item, limits, index)
        picture_bytes += pictures
        limits.check("max_request_picture_bytes", picture_bytes, "bytes of the request's pictures")
        size = len(payload) - ((len(item.tree) if item.tree else 0) + pictures) * 4 // 3
        limits.check("max_item_bytes", size, f"item {index} ({item.id!r:.80}): bytes")
        if item.id in places:
            raise InvalidItem(f"repeats the id of item {places[item.id]}", index=index, item_id=item.id, field="id")
        places[item.id] = index
        items.append(item)
    return items


def has_pictures(item: Item) -> bool:
    """Whether an item brings a picture or frames."""
    if isinstance(item, VideoItem):
        return bool(item.frames)
    return isinstance(item, ImageItem) and item.image is not None


def without_pictures(item: Item) -> Item:
    """The item in words alone: a copy without picture and frames where it has any, else the item itself."""
    if isinstance(item, VideoItem) and item.frames:
        return msgspec.structs.replace(item, frames=[])
    if isinstance(item, ImageItem) and item.image is not None:
        return msgspec.structs.replace(item, image=None)
    return item


def bring_trees(payloads: Sequence[bytes]) -> bool:
    """Whether there are items, as JSON, and each brings a tree along; a glance that checks nothing else.

    False where an item cannot be read: whoever parses it says what is wrong.
    """
    try:
        return bool(payloads) and all(bytes(_glance.decode(one).tree) not in (b"", b"null") for one in payloads)
    except UNREADABLE:
        return False


def json_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of one item."""
    (schema,), components = msgspec.json.schema_components([Item], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CANOPY item",
        **schema,
        "$defs": components,
    }


def _validation_error(error: msgspec.ValidationError, payload: bytes) -> InvalidItem:
    """Turn msgspec's message, which ends in a path such as ``$.rows[0]``, into ours, which names item and field."""
    reason, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").lstrip(".") or None
    if field is None and "required field" in reason:
        field = reason.rsplit("`", 2)[1]
    if "Invalid value" in reason and field == "modality":
        reason += "; use text, table, video or image"
    try:
        known = msgspec.json.decode(payload, type=_Identity).id
    except UNREADABLE:
        known = None
    return InvalidItem(reason, item_id=known if isinstance(known, str) else None, field=field)


def _check_pictures(item: Item, limits: Limits, index: int) -> int:
    """Bytes of an item's pictures, which are within limits.

    Args:
        item: The item.
        limits: What it may bring.
        index: Its place in the request.

    Raises:
        LimitExceeded: It has too many frames, or its picture, or all its frames together, too many bytes.
    """
    if isinstance(item, VideoItem) and item.frames:
        total = sum(len(frame.image) for frame in item.frames)
    elif isinstance(item, ImageItem) and item.image:
        total = len(item.image)
    else:
        return 0
    name = f"item {index} ({item.id!r:.80})"
    if isinstance(item, VideoItem):
        limits.check("max_frames", len(item.frames), f"{name}: frames")
    limits.check("max_picture_bytes", total, f"{name}: bytes of its pictures")
    return total


def _check(item: Item) -> None:
    """Refuse values that the types allow and no item can have."""
    if isinstance(item, TableItem):
        width = len(item.columns)
        if width == 0:
            raise InvalidItem("a table needs at least one column", item_id=item.id, field="columns")
        for place, row in enumerate((*item.header_rows, *item.rows)):
            if len(row) > width:
                inner = place - len(item.header_rows)
                field = f"rows[{inner}]" if inner >= 0 else f"header_rows[{place}]"
                raise InvalidItem(f"has {len(row)} cells, the header has {width}", item_id=item.id, field=field)
    elif isinstance(item, VideoItem):
        if not 0 < item.duration_s <= MAX_DURATION_S:
            reason = f"{item.duration_s} is not a length between 0 and {MAX_DURATION_S} seconds"
            raise InvalidItem(reason, item_id=item.id, field="duration_s")
        for place, cue in enumerate(item.segments):
            if not 0 <= cue.start <= cue.end <= MAX_DURATION_S:
                raise InvalidItem(f"runs from {cue.start} to {cue.end} s", item_id=item.id, field=f"segments[{place}]")
        _check_frames(item)
    elif isinstance(item, ImageItem) and item.image is not None and not item.image:
        raise InvalidItem("is empty; leave the field out where there is no picture", item_id=item.id, field="image")


def _check_frames(item: VideoItem) -> None:
    """Refuse frames that are out of order, outside of the clip, or empty."""
    before = -1.0
    for place, frame in enumerate(item.frames):
        field = f"frames[{place}]"
        if not before < frame.at_s <= item.duration_s or frame.at_s < 0:
            reason = f"at_s {frame.at_s} is not after the frame before and within 0 to {item.duration_s} s"
            raise InvalidItem(reason, item_id=item.id, field=field)
        if not frame.image:
            raise InvalidItem("has no picture", item_id=item.id, field=field)
        before = frame.at_s
