"""Contents to token sequences with positions of three axes and places for visual tokens.

The chat's turns are the special tokens of the tokenizer that an export writes, so :class:`EncoderTokenizer` puts them
around a content as it does with any model's, and markers that a document spells in its text stay text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidRequest
from canopy_backend.qwen3vl.patches import Grid
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.templates import NOTHING
from canopy_backend.tokenization import EncoderTokenizer, TokenIds

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by its grid ``(1, h, w)``."""

    grid: Grid


@dataclass(frozen=True, slots=True)
class VideoPart:
    """A video by its grid ``(t, h, w)`` and the times of its frames in seconds, before any was repeated."""

    grid: Grid
    times: tuple[float, ...]


#: A piece of a content: pixels, text, or text as its tokens. Pixels stand before text, as the model was trained.
Part: TypeAlias = ImagePart | VideoPart | str | TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class ChatSequence:
    """One input of the language backbone.

    Attributes:
        ids: L token ids, turns included.
        positions: int64 ``[3, L]``, time, height and width, from 0.
        visual: int64 ``[L]``, from 1 the place of a visual token among those of this sequence; 0 for text.
    """

    ids: TokenIds
    positions: Int64Array
    visual: Int64Array


def encode_content(parts: Sequence[Part], tokenizer: EncoderTokenizer, settings: VisionSettings) -> ChatSequence:
    """Token ids, positions and visual places of one content.

    Args:
        parts: Images, videos and texts in their order; none is the word for nothing.
        tokenizer: With the turns of the wanted instruction.
        settings: The model's.

    Raises:
        InvalidRequest: A video's times do not go with its grid, or the sequence is longer than the tokenizer's window:
            pixels cannot be cut as text can.
    """
    ids: TokenIds = list(tokenizer.head)
    spans: list[tuple[int, int, Grid]] = []
    for part in parts or [NOTHING]:
        if isinstance(part, str):
            ids += tokenizer.encode_plain([part])[0]
        elif isinstance(part, list):
            ids += part
        elif isinstance(part, ImagePart):
            _append_frame(ids, spans, part.grid, settings.image_token, settings)
        else:
            _, height, width = part.grid
            for time in _times(part, settings):
                ids += tokenizer.encode_plain([f"<{time:.1f} seconds>"])[0]
                _append_frame(ids, spans, (1, height, width), settings.video_token, settings)
    ids += tokenizer.tail
    if len(ids) > tokenizer.window:
        raise InvalidRequest(f"an input of {len(ids)} tokens is longer than the encoder's window, {tokenizer.window}")
    return ChatSequence(ids, *positions_of(len(ids), spans, settings.merge))


def encode_windows(
    pixels: ImagePart | VideoPart, text: str, tokenizer: EncoderTokenizer, settings: VisionSettings
) -> list[ChatSequence]:
    """Pixels and a text that is too long for one window: the first has the pixels, all together have all of the text.

    Raises:
        InvalidRequest: The pixels alone do not fit.
    """
    room = tokenizer.window - len(encode_content([pixels], tokenizer, settings).ids)
    ids = tokenizer.encode_plain([text])[0]
    first = encode_content([pixels, ids[:room]], tokenizer, settings)
    rest = tokenizer.windows(ids[room:]) if len(ids) > room else []
    return [first, *(ChatSequence(one, *positions_of(len(one), [], settings.merge)) for one in rest)]


def _append_frame(
    ids: TokenIds, spans: list[tuple[int, int, Grid]], grid: Grid, token: int, settings: VisionSettings
) -> None:
    """Append one frame between its markers, and note where it stands."""
    count = grid[0] * grid[1] * grid[2] // settings.merge**2
    start = len(ids) + 1
    ids += [settings.vision_start, *[token] * count, settings.vision_end]
    spans.append((start, start + count, grid))


def _times(video: VideoPart, settings: VisionSettings) -> list[float]:
    """The middle of the first and last time of each group of frames that share their patches."""
    step = settings.temporal
    times = [*video.times, *video.times[-1:] * (-len(video.times) % step)]
    if len(times) != step * video.grid[0]:
        raise InvalidRequest(f"a video of {video.grid[0]} rows of {step} frames has {len(video.times)} times")
    return [(times[place] + times[place + step - 1]) / 2 for place in range(0, len(times), step)]


def positions_of(length: int, spans: Sequence[tuple[int, int, Grid]], merge: int) -> tuple[Int64Array, Int64Array]:
    """Positions ``[3, L]`` and visual places ``[L]``.

    Text counts on on all axes. A frame starts where the text before it ended and counts its rows and columns; text goes
    on behind the longer of its sides.
    """
    positions = np.empty((3, length), np.int64)
    visual = np.zeros(length, np.int64)
    at = now = seen = 0
    for start, end, (_, height, width) in spans:
        positions[:, at:start] = np.arange(now, now + start - at)
        now += start - at
        rows, columns = height // merge, width // merge
        positions[0, start:end] = now
        positions[1, start:end] = now + np.repeat(np.arange(rows), columns)
        positions[2, start:end] = now + np.tile(np.arange(columns), rows)
        visual[start:end] = np.arange(seen + 1, seen + 1 + end - start)
        seen += end - start
        now += max(rows, columns)
        at = end
    positions[:, at:] = np.arange(now, now + length - at)
    return positions, visual
