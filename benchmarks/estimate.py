"""How long a GPU takes for items with pixels at the size of Qwen3-VL-Embedding-2B, estimated from its parameter counts.

``python -m benchmarks.estimate`` prints the table of docs/gpu.md. Nothing is measured here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Frame, VideoItem
from canopy_backend.pixels import frames_of
from canopy_backend.pixels.bounds import ENCODER_CLIP_PIXELS, ENCODER_FRAME_PIXELS
from canopy_backend.pixels.jpeg import in_tokens
from canopy_backend.pixels.windows import window_starts
from canopy_backend.qwen3vl.nodes import Clip, Look
from canopy_backend.qwen3vl.patches import image_grid
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.qwen3vl.tower import Tower
from canopy_export.qwen3vl.tiny import SIZES
from canopy_training.evaluation.tables import table

#: Dense bfloat16 peak in TFLOP/s, and the share of it that is assumed.
PEAKS: Final = {"H100": 989.0, "A100": 312.0, "L4": 121.0}
SHARE: Final = 0.4
#: Token ids are of no account here.
SETTINGS: Final = VisionSettings(
    image_token=0, video_token=1, vision_start=2, vision_end=3, grid_side=48, hidden=SIZES["2b"][0]["hidden_size"]
)
#: Most tokens of a sequence, as the export writes it.
WINDOW: Final = 2048
#: Tokens of the turns, and of a frame's brackets and its time.
TURNS: Final = 24
BRACKETS: Final = 2
TIME: Final = 6
#: Frames that one item brings at most.
FRAMES: Final = 32
#: A clip as it was filmed.
HD: Final = (720, 1280)


@dataclass(frozen=True)
class Work:
    """What the encoder does for something.

    Attributes:
        sequences: Tokens of each sequence of the language graph.
        frames: Patches of each frame, or pair of frames, that the vision tower looks at.
        shown: Patches that the sequences show together; more than those of ``frames`` where nodes show the same.
    """

    sequences: tuple[int, ...]
    frames: tuple[int, ...] = ()
    shown: int = 0

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return sum(self.sequences)

    @property
    def patches(self) -> int:
        """That the tower looks at."""
        return sum(self.frames)

    @property
    def flop(self) -> float:
        """Operations, a multiplication with its addition counted as two.

        Attention is counted over all tokens of a sequence, as graphs mask what a token may not see.
        """
        language, vision = SIZES["2b"]
        width = language["num_attention_heads"] * language["head_dim"]
        attention = 4 * language["num_hidden_layers"] * width * sum(length**2 for length in self.sequences)
        sight = 4 * vision["depth"] * vision["hidden_size"] * sum(size**2 for size in self.frames)
        dense = 2 * language_parameters(language) * self.tokens + patch_flop(vision) * self.patches
        return float(dense + attention + sight)

    def ms(self, gpu: str) -> float:
        """Milliseconds on one of :data:`PEAKS`."""
        return self.flop / (SHARE * PEAKS[gpu] * 1e9)


def language_parameters(config: dict[str, Any]) -> int:
    """Weights of the decoder layers; embeddings are looked up."""
    hidden, size = config["hidden_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    attention = hidden * size * (2 * heads + 2 * groups)
    return int(config["num_hidden_layers"] * (attention + 3 * hidden * config["intermediate_size"]))


def patch_flop(config: dict[str, Any]) -> float:
    """Operations of one patch in the vision tower, without attention: blocks, its part of four mergers, its pixels."""
    hidden = config["hidden_size"]
    block = 4 * hidden**2 + 2 * hidden * config["intermediate_size"]
    tokens = SETTINGS.merge**2  # patches of one
    merger = (tokens * hidden) ** 2 + tokens * hidden * config["out_hidden_size"]
    mergers = (len(config["deepstack_visual_indexes"]) + 1) * merger / tokens
    return float(2 * (config["depth"] * block + mergers + SETTINGS.patch_size * hidden))


def image_work(height: int, width: int) -> Work:
    """An image of this size with no words."""
    _, rows, columns = image_grid(height, width, SETTINGS)
    patches = rows * columns
    return Work((TURNS + BRACKETS + patches // 4,), (patches,), patches)


def clip_work(duration_s: float, height: int = HD[0], width: int = HD[1], window: int = WINDOW) -> Work:
    """A clip without words, all of its nodes.

    Args:
        duration_s: Its length.
        height: Of a frame as it was filmed.
        width: The same.
        window: Most tokens of a sequence; longer nodes are not encoded.
    """
    lengths, looks = zip(*_encoded(duration_s, height, width, window), strict=True)
    return Work(lengths, tuple(_looked_at(looks)), sum(one.patches for look in looks for one in look.shown))


def looks_of(item: VideoItem, frames: npt.NDArray[np.uint8]) -> list[Look]:
    """What each node of a clip shows; frames uint8 ``[T, H, W, 3]``."""
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    spans = np.stack([fragments.spans[hierarchy.first, 0], fragments.spans[hierarchy.last - 1, 1]], axis=1)
    clip = Clip(frames, np.array([frame.at_s for frame in item.frames]), SETTINGS)
    return [clip.look(first, last) for first, last in frames_of(item, spans).tolist()]


def fits(look: Look, window: int = WINDOW) -> int | None:
    """Tokens of a clip's node without words; ``None`` where they are more than the window has."""
    length = TURNS + sum(BRACKETS + TIME + one.patches // SETTINGS.merge**2 for one in look.shown)
    return length if length <= window else None


def _encoded(duration_s: float, height: int, width: int, window: int) -> Iterator[tuple[int, Look]]:
    starts = window_starts(duration_s, FRAMES)
    most = min(ENCODER_FRAME_PIXELS, ENCODER_CLIP_PIXELS // len(starts))
    wide, tall = in_tokens(width, height, most)
    item = VideoItem(id="clip", duration_s=duration_s, frames=[Frame(at_s, b"") for at_s in starts])
    for look in looks_of(item, np.broadcast_to(np.uint8(0), (len(starts), tall, wide, 3))):
        if (length := fits(look, window)) is not None:
            yield length, look


def _looked_at(looks: Sequence[Look]) -> list[int]:
    """Patches of each pair of frames that the tower gets, told by the tower's own rule for what is kept."""
    seen: list[int] = []

    def run(inputs: Any) -> list[npt.NDArray[np.float32]]:
        seen.extend(Counter(inputs["seg"].tolist()).values())
        count = len(inputs["patches"]) // SETTINGS.merge**2
        return [np.zeros((count, 1), np.float32), np.zeros((3, count, 1), np.float32)]

    bare = [replace(look, patches=lambda shown: np.zeros((shown.patches, 1), np.uint8)) for look in looks]
    tower = Tower(run, SETTINGS, bare)
    for look in bare:
        tower.features([look])
    return seen


def rows() -> list[tuple[str, Work]]:
    """What the table of docs/gpu.md shows."""
    return [
        ("query, 15 words", Work((45,))),
        ("passage of 10 sentences, all 19 nodes", Work((78,) * 19)),
        ("image of a million pixels", image_work(1024, 1024)),
        ("30 s of video: 3 frames, two rows of them", clip_work(30)),
        ("2 minutes of video: 12 frames", clip_work(120)),
        ("5 minutes of video: 30 frames", clip_work(300)),
        ("10 minutes of video: 32 frames", clip_work(600)),
    ]


def page() -> str:
    """The table."""
    header = ["item", "tokens", "patches shown", "looked at", "TFLOP", *(f"{gpu} ({PEAKS[gpu]:.0f})" for gpu in PEAKS)]
    lines = [
        [
            name,
            f"{work.tokens:,}",
            f"{work.shown:,}",
            f"{work.patches:,}",
            f"{work.flop / 1e12:.3g}",
            *(_time(work.ms(gpu)) for gpu in PEAKS),
        ]
        for name, work in rows()
    ]
    return table(header, lines)


def _time(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms" if ms >= 1 else f"{ms:.1f} ms"


if __name__ == "__main__":
    print(page())
