"""A clip's file, MP4 or WebM, to pictures. Only the frames that are wanted are decoded, and what leads to them.

A first pass reads the packets without decoding any: where the key frames are, when each frame is shown, where the clip
really ends. That is right for variable frame rates, for headers that lie and for files without an index. Then the
frames of :mod:`canopy_backend.pixels.windows` are sought, decoded, turned upright, scaled down and written as JPEG.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidItem
from canopy_backend.items import MAX_DURATION_S, Frame
from canopy_backend.limits import Limits
from canopy_backend.pixels.bounds import BOUNDS, ENCODER_CLIP_PIXELS, ENCODER_FRAME_PIXELS, MAX_RATIO, PixelBounds
from canopy_backend.pixels.jpeg import as_jpeg, in_tokens
from canopy_backend.pixels.libraries import pyav
from canopy_backend.pixels.windows import plan_runs

UInt8Array = npt.NDArray[np.uint8]

#: What a clip may be coded in; a browser plays the same.
CODECS: Final = ("h264", "hevc", "mpeg4", "vp8", "vp9", "av1")
_MOST_STREAMS: Final = 32
#: A clip that ends so much before its header says, in seconds and as a share, was cut short.
_MISSING_S: Final = 1.0
_MISSING_SHARE: Final = 0.02
#: The library's clock of a whole clip, in ticks a second.
_MICRO: Final = 1_000_000
_QUALITIES: Final = (90, 75, 50, 25)


@dataclass(frozen=True, slots=True)
class Clip:
    """What is kept of a clip's file.

    Attributes:
        duration_s: Its length in seconds.
        frames: Pictures in time order, JPEG, all of one size.
        decoded: Frames that were decoded for them.
    """

    duration_s: float
    frames: list[Frame]
    decoded: int


@dataclass(frozen=True, slots=True)
class _Table:
    """What the packets of a clip say, times in the video stream's own unit.

    Attributes:
        origin: When the clip begins.
        keys: When each key frame is shown, ascending.
        shown: When each frame is shown, ascending.
        duration_s: From there to the end of the last packet of any stream.
    """

    origin: int
    keys: list[int]
    shown: list[int]
    duration_s: float


def read_clip(
    source: bytes | Path,
    *,
    limits: Limits | None = None,
    bounds: PixelBounds = BOUNDS,
    item_id: str | None = None,
    field: str | None = "uri",
) -> Clip:
    """The frames of a clip, one for each 10 s, fewer and farther apart where that would be more than ``max_frames``.

    Frames are at most as large as Qwen3-VL-Embedding looks at, in whole tokens of it, and lighter where they would be
    over ``max_picture_bytes``. Pixels are taken as square; sound is not looked at.

    Args:
        source: The file, MP4 or WebM, in memory or on disk.
        limits: What an item may bring.
        bounds: What may be decoded.
        item_id: Named by errors.
        field: Named by errors.

    Raises:
        InvalidItem: It is no such file, has no video stream, is damaged, cut short, over a bound or without length,
            or PyAV or Pillow is absent.
    """
    return _Reader(limits or Limits(), bounds, item_id, field).read(source)


class _Input:
    """A file for the demuxer, which asks here for every byte: the one place where a loop of its own can be ended.

    When the time is up, the file is at its end; errors raised here would be lost on their way through the library.
    """

    def __init__(self, file: BinaryIO, deadline: float) -> None:
        self._file = file
        self._deadline = deadline

    def read(self, size: int) -> bytes:
        return b"" if time.monotonic() > self._deadline else self._file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()


def _no_other(name: str, *_: Any) -> NoReturn:
    """A clip is one file: whatever else it names stays closed."""
    raise PermissionError(f"names another file, {name[:80]!r}")


class _Reader:
    """One clip on its way to pictures."""

    def __init__(self, limits: Limits, bounds: PixelBounds, item_id: str | None, field: str | None) -> None:
        self._limits = limits
        self._bounds = bounds
        self._item_id = item_id
        self._field = field
        self._deadline = time.monotonic() + bounds.max_clip_seconds
        self._decoded = 0

    def read(self, source: bytes | Path) -> Clip:
        av = pyav(self._item_id, self._field)
        try:
            with BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
                size = file.seek(0, 2)
                if size > self._bounds.max_clip_bytes:
                    self._refuse(f"{size} bytes are more than {self._bounds.max_clip_bytes}")
                file.seek(0)
                container = self._container(file.read(64))
                file.seek(0)
                with av.open(
                    _Input(file, self._deadline),
                    "r",
                    format=container,
                    container_options={"max_streams": str(_MOST_STREAMS)},
                    metadata_errors="replace",
                    io_open=_no_other,
                ) as opened:
                    return self._clip(opened)
        except Exception as error:  # a demuxer or decoder of hostile bytes may raise anything; the item is at fault
            self._check_time()
            if isinstance(error, InvalidItem):
                raise
            self._refuse(f"cannot be read as a clip ({getattr(error, 'strerror', None) or error})"[:300])

    def _container(self, head: bytes) -> str:
        """The demuxer of a file, told by its first bytes; no other is ever tried."""
        if head[4:8] == b"ftyp":
            return "mp4"
        if head.startswith(b"\x1aE\xdf\xa3") and b"webm" in head:
            return "webm"
        self._refuse("is no MP4 or WebM clip, whatever its name says")

    def _clip(self, container: Any) -> Clip:
        # A cover is a video stream to the library.
        stream = next((one for one in container.streams.video if "attached_pic" not in str(one.disposition)), None)
        if stream is None:
            self._refuse("has no video stream")
        codec = stream.codec_context.codec.canonical_name if stream.codec_context else "something unknown"
        if codec not in CODECS:
            self._refuse(f"is coded in {codec}; known are {', '.join(CODECS)}")
        self._check_size(stream.codec_context.width, stream.codec_context.height)
        stream.codec_context.thread_count = 1
        # The decoder's own bound, for pictures that are larger than the header says; it counts its margins too.
        stream.codec_context.options = {"max_pixels": str(2 * self._bounds.max_clip_pixels)}
        table = self._table(container, stream)
        self._check_time()
        pictures = list(self._pictures(container, stream, table))
        if not pictures:
            self._refuse("has no frame that can be decoded")
        each = self._limits.max_picture_bytes
        for quality in _QUALITIES:
            frames = [Frame(at_s, as_jpeg(pixels, quality)) for at_s, pixels in pictures]
            if sum(len(frame.image) for frame in frames) <= each:
                return Clip(table.duration_s, frames, self._decoded)
        self._refuse(f"its {len(pictures)} frames are more than {each} bytes even as small pictures")

    def _table(self, container: Any, stream: Any) -> _Table:
        """Read all packets, decode none."""
        keys: list[int] = []
        shown: list[int] = []
        starts: dict[int, int] = {}  # when the packet of each stream that is due last is due
        lasts: dict[int, int] = {}  # how long the last in the file takes; of others reordering changes that
        for count, packet in enumerate(container.demux()):
            if count > self._bounds.max_clip_packets:
                self._refuse(f"has more than {self._bounds.max_clip_packets} packets")
            if packet.is_corrupt:
                self._refuse("is cut short: a packet ends before it should")
            if packet.pts is None or packet.size == 0:
                continue
            place = packet.stream_index
            starts[place] = max(packet.pts, starts.get(place, packet.pts))
            lasts[place] = max(0, packet.duration or 0)
            if place == stream.index:
                if not packet.is_discard:  # what an edit list leaves out is decoded where it leads to what it leaves in
                    shown.append(packet.pts)
                if packet.is_keyframe:
                    keys.append(packet.pts)
        if not keys or not shown:
            self._refuse("has no key frame to begin at")
        shown.sort()
        keys.sort()
        # A transcript counts from where the clip begins, which may be before its first picture.
        begin_s = (
            shown[0] * stream.time_base if container.start_time is None else Fraction(container.start_time, _MICRO)
        )
        origin = min(shown[0], round(begin_s / stream.time_base))
        end = max((starts[place] + lasts[place]) * container.streams[place].time_base for place in starts)
        duration_s = float(end - origin * stream.time_base)
        promised_s = (container.duration or 0) / _MICRO
        if duration_s < promised_s - max(_MISSING_S, _MISSING_SHARE * promised_s):
            self._refuse(
                f"is cut short: it ends after {duration_s:.1f} s of the {promised_s:.1f} s that it should have"
            )
        if not 0 < duration_s <= MAX_DURATION_S:
            self._refuse(f"its length of {duration_s:g} s is not between 0 and {MAX_DURATION_S} s")
        return _Table(origin, keys, shown, duration_s)

    def _pictures(self, container: Any, stream: Any, table: _Table) -> Iterator[tuple[float, UInt8Array]]:
        """Times in seconds and uint8 ``[height, width, 3]`` of one size, in time order."""
        unit, (ticks, second) = float(stream.time_base), stream.time_base.as_integer_ratio()
        # Rounded as the clip's length is: a key frame at its very end is not behind it.
        keys = [(key - table.origin) * ticks / second for key in table.keys]
        runs = plan_runs(keys, table.duration_s, self._limits.max_frames)
        total = sum(len(run.at_s) for run in runs)
        size: tuple[int, int] | None = None
        for run in runs:
            # A time on a key frame is that key frame's own; half a unit keeps the rounding of seconds out of it.
            wanted = [
                table.shown[max(0, bisect_right(table.shown, table.origin + at_s / unit + 0.5) - 1)]
                for at_s in run.at_s
            ]
            frames = self._frames(container, stream, table.keys[run.key], wanted)
            for at_s, frame in zip(run.at_s, frames, strict=False):
                self._check_size(frame.width, frame.height)
                size = size or in_tokens(
                    frame.width, frame.height, min(ENCODER_FRAME_PIXELS, ENCODER_CLIP_PIXELS // total)
                )
                small = frame.reformat(*size, format="rgb24", interpolation="BICUBIC").to_ndarray()
                yield at_s, np.ascontiguousarray(np.rot90(small, round(frame.rotation / 90)))

    def _frames(self, container: Any, stream: Any, key: int, wanted: list[int]) -> Iterator[Any]:
        """The frames shown at these times, decoded from one key frame on."""
        container.seek(key, stream=stream)
        stream.codec_context.flush_buffers()
        left = wanted[::-1]
        for packet in container.demux(stream):
            # Once the last wanted one is sent, the decoder is emptied rather than fed: it holds frames back. No frame
            # is shown before its packet is due, so a packet that is due later tells that the wanted one is missing.
            last = packet.size == 0 or packet.pts == wanted[-1] or (packet.dts or wanted[-1]) > wanted[-1]
            decoded = list(packet.decode())
            if last and packet.size:
                decoded += stream.codec_context.decode(None)
            for frame in decoded:
                self._count()
                while left and frame.pts is not None and frame.pts >= left[-1]:
                    left.pop()
                    yield frame
            if last or not left:
                return

    def _count(self) -> None:
        self._decoded += 1
        if self._decoded > self._bounds.max_clip_frames:
            self._refuse(f"needs more than {self._bounds.max_clip_frames} frames decoded; it has too few key frames")
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            self._refuse(f"takes longer to read than {self._bounds.max_clip_seconds:g} s")

    def _check_size(self, width: int, height: int) -> None:
        if width < 1 or height < 1:
            self._refuse(f"{width} x {height} pixels are no picture")
        if width * height > self._bounds.max_clip_pixels:
            self._refuse(f"{width} x {height} pixels a frame are more than {self._bounds.max_clip_pixels}")
        if max(width, height) > MAX_RATIO * min(width, height):
            self._refuse(f"{width} x {height} pixels: one side is more than {MAX_RATIO} times the other")

    def _refuse(self, reason: str) -> NoReturn:
        raise InvalidItem(reason, item_id=self._item_id, field=self._field)
