"""What is decoded at most. Sizes are read off headers, so nothing over a bound is ever unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Longest side of a picture for its shortest: what the processor of Qwen3-VL takes.
MAX_RATIO: Final = 200
#: Pixels of the side of a token of Qwen3-VL-Embedding, which resizes what is no multiple of it.
ENCODER_TOKEN: Final = 32
#: Most pixels of a picture, and of all frames of a clip together, that it looks at.
ENCODER_PIXELS: Final = 1800 * ENCODER_TOKEN**2
ENCODER_CLIP_PIXELS: Final = 7680 * ENCODER_TOKEN**2
#: Of one frame of three, which a segment of 30 s has: it counts them as four, of 768 tokens each for three.
ENCODER_FRAME_PIXELS: Final = 576 * ENCODER_TOKEN**2
#: Seconds between two frames of a clip, where it has no more of them than a server takes.
FRAME_STEP_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelBounds:
    """Bounds of decoding.

    Attributes:
        max_pixels: Pixels of a picture, or of all frames that an item brings together. A picture takes 4 bytes a
            pixel while it is decoded and 3 afterwards.
        max_scans: Passes of a progressive JPEG; each costs as much as the picture, however few bytes it has.
        max_file_bytes: Bytes of a picture's file.
        max_clip_bytes: Bytes of a clip's file.
        max_clip_pixels: Pixels of one frame of a clip; a decoder keeps up to 17 frames.
        max_clip_packets: Packets of a clip, all streams together.
        max_clip_frames: Frames that are decoded of one clip.
        max_clip_seconds: Wall-clock seconds that reading a clip may take.
    """

    max_pixels: int = 50_000_000
    max_scans: int = 64
    max_file_bytes: int = 64 * 1024 * 1024
    max_clip_bytes: int = 1024 * 1024 * 1024
    max_clip_pixels: int = 4096 * 2304
    max_clip_packets: int = 2_000_000
    max_clip_frames: int = 20_000
    max_clip_seconds: float = 120.0


BOUNDS: Final = PixelBounds()
