"""What a language model that sees is shown: pictures of kept regions, checked, scaled and written anew.

No byte of a file that an item brings is sent on. It is decoded within :mod:`canopy_backend.pixels`' bounds, brought to
the size that the model's own processor would bring it to, and written as a JPEG. A picture that cannot be read, or for
which there is no room, is left out with a reason; the words of its item stand in any case.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np

from canopy_backend.errors import CanopyError, CriticError, InvalidItem, InvalidRequest
from canopy_backend.evidence import Evidence
from canopy_backend.items import ImageItem, Item, VideoItem
from canopy_backend.pixels import BOUNDS, decode_image, frames_of, read_header
from canopy_backend.pixels.bounds import MAX_RATIO
from canopy_backend.pixels.jpeg import as_jpeg, resized
from canopy_backend.qwen3vl.patches import fitted
from canopy_backend.reading import UNREADABLE, told
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Picture

logger = logging.getLogger(__name__)

#: Pictures of one prompt: what the critic's model is configured for in the model repository.
PICTURES: Final = 10
#: Pixels of a picture: 1,024 tokens of Qwen3-VL.
PIXELS: Final = 1_048_576
#: Bytes of all pictures of one prompt, in base64.
BYTES: Final = 16 * 1024 * 1024
MOST_PICTURES: Final = 256
MOST_BYTES: Final = 256 * 1024 * 1024

#: Pixels of a token's side in Qwen3-VL; 28 in Qwen2-VL and Qwen2.5-VL.
_SIDE: Final = 32
#: Fewest pixels of a picture that Qwen3-VL looks at; smaller ones are made larger.
_FEWEST: Final = 65_536
_QUALITY: Final = 90
#: The model's marks before and behind a picture.
_MARKS: Final = 2
_PROCESSOR: Final = "preprocessor_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a model is shown at most.

    Attributes:
        pictures: Pictures of one prompt.
        pixels: Most pixels of a picture; larger ones are made smaller.
        bytes: Bytes of all pictures of one prompt, in base64.
        fewest: Fewest pixels of a picture; smaller ones are made larger, as the model's processor would do.
        side: Pixels of a token's side: what the model's processor makes one token of.

    Raises:
        InvalidRequest: A value is out of its range; names it.
    """

    pictures: int = PICTURES
    pixels: int = PIXELS
    bytes: int = BYTES
    fewest: int = _FEWEST
    side: int = _SIDE

    def __post_init__(self) -> None:
        for name, least, most in (
            ("pictures", 1, MOST_PICTURES),
            ("pixels", self.side * self.side, BOUNDS.max_pixels),
            ("bytes", 1, MOST_BYTES),
        ):
            if not least <= getattr(self, name) <= most:
                raise InvalidRequest(f"{name}: {getattr(self, name)} is not a whole number from {least} to {most}")

    def of_processor(self, folder: Path | None) -> Sight:
        """The same for a model whose processor says how large a token is, and what it scales pictures to.

        Args:
            folder: The model's folder. Where there is none, or no description of a processor, it stays Qwen3-VL's.

        Raises:
            CriticError: The description cannot be read.
        """
        file = None if folder is None else folder / _PROCESSOR
        if file is None or not file.is_file():
            return self
        try:
            found: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            size = found.get("size") or {}
            side = int(found.get("patch_size", 16)) * int(found.get("merge_size", 2))
            fewest = int(size.get("shortest_edge") or found.get("min_pixels") or self.fewest)
            most = int(size.get("longest_edge") or found.get("max_pixels") or self.pixels)
        except (OSError, *UNREADABLE, TypeError, ValueError, AttributeError) as error:
            raise CriticError(f"{file.name}: {told(error)}") from None
        if side < 1 or not side * side <= fewest <= most:
            raise CriticError(f"{file.name}: tokens of {side} pixels, pictures of {fewest} to {most} pixels")
        return replace(self, pixels=max(side * side, min(self.pixels, most)), fewest=fewest, side=side)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which the model is shown a picture: whole tokens, within both bounds."""
        tall, wide = fitted(height, width, self.side, (min(self.fewest, self.pixels), self.pixels))
        # A strip is one token high at least, so it may still be too long for the bound, or for the processor.
        short = min(tall, wide)
        most = min(MAX_RATIO * short, max(self.side, self.pixels // short // self.side * self.side))
        return min(tall, most), min(wide, most)

    def tokens(self, height: int, width: int) -> int:
        """Tokens of a picture of a size that :meth:`size` gave, with the marks around it."""
        return (height // self.side) * (width // self.side) + _MARKS


@dataclass(slots=True)
class Room:
    """What is left for pictures in the prompts of one question; evidence only grows, so the later find less."""

    pictures: int
    bytes: int

    @classmethod
    def of(cls, sight: Sight) -> Self:
        """All of it."""
        return cls(sight.pictures, sight.bytes)


@dataclass(frozen=True, slots=True)
class Seen:
    """One picture of an item's kept regions.

    Attributes:
        at_ms: The frame's time in its clip, in milliseconds; ``None`` for the picture of an image.
        picture: What the model is shown; ``None`` where it cannot be.
        reason: Why not.
    """

    at_ms: int | None
    picture: Picture | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    """A picture file of an item, and where it belongs."""

    at_ms: int | None
    payload: bytes = field(repr=False)
    name: str


async def look(item: Item, evidence: Evidence, sight: Sight, room: Room, deadline: Deadline) -> list[Seen]:
    """The pictures of what is kept of an item, in source order.

    Where a clip has more frames than there is room for, they are taken evenly, so that all of it is seen.

    Args:
        item: The item, with its pictures.
        evidence: What is kept of it.
        sight: What the model is shown.
        room: What is left; what is taken here is taken off.
        deadline: When no further picture is begun.
    """
    files = _files(item, evidence)
    chosen = set(spread(len(files), room.pictures))
    seen: list[Seen] = []
    left = BOUNDS.max_pixels
    for place, one in enumerate(files):
        picture, reason = None, ""
        if place not in chosen:
            reason = f"over the {sight.pictures} pictures of a prompt"
        elif room.bytes <= 0:
            reason = f"over the {sight.bytes} bytes of a prompt's pictures"
        elif deadline.remaining_s() <= 0:
            reason = "there was no time for it"
        else:
            try:
                # In a thread: other questions go on meanwhile, and a hostile file may take a second or two.
                picture, pixels = await asyncio.to_thread(_prepared, one, item.id, sight, left)
                left -= pixels
            except CanopyError as error:
                reason = str(error)
                # By the error's name: its words have the item's.
                logger.warning("a picture is left out: %s", type(error).__name__)
        if picture is not None and len(picture.base64) > room.bytes:
            picture, reason, room.bytes = None, f"over the {sight.bytes} bytes of a prompt's pictures", 0
        if picture is not None:
            room.pictures -= 1
            room.bytes -= len(picture.base64)
        seen.append(Seen(one.at_ms, picture, reason))
    return seen


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the places 0 to ``count - 1``, as evenly as can be."""
    if most >= count:
        return list(range(count))
    return [(2 * place + 1) * count // (2 * most) for place in range(most)]


def _files(item: Item, evidence: Evidence) -> list[_File]:
    if isinstance(item, ImageItem) and item.image is not None:
        return [_File(None, item.image, "image")]
    if not isinstance(item, VideoItem) or not item.frames:
        return []
    runs = frames_of(item, np.array([[one.start, one.end] for one in evidence.regions], np.int64))
    places = sorted({frame for start, end in runs.tolist() for frame in range(start, end)})
    return [
        _File(round(item.frames[place].at_s * 1000), item.frames[place].image, f"frames[{place}].image")
        for place in places
    ]


def _prepared(file: _File, item_id: str, sight: Sight, left: int) -> tuple[Picture, int]:
    """A file as the model is shown it, and the pixels that were decoded for it.

    Raises:
        InvalidItem: It cannot be decoded, or has more pixels than are left.
    """
    header = read_header(file.payload, item_id=item_id, field=file.name)
    if (pixels := header.width * header.height) > left:
        reason = f"{pixels} pixels are more than what is left of {BOUNDS.max_pixels} for the item"
        raise InvalidItem(reason, item_id=item_id, field=file.name)
    image = decode_image(file.payload, item_id=item_id, field=file.name)
    height, width = sight.size(*image.shape[:2])
    encoded = base64.b64encode(as_jpeg(resized(image, width, height), _QUALITY)).decode("ascii")
    return Picture(encoded, width, height, sight.tokens(height, width)), pixels
