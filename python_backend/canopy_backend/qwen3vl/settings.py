"""What the host must know about a Qwen3-VL: token ids, patch sizes, pixel budgets; a file beside the graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from canopy_backend.errors import ExportError
from canopy_backend.reading import UNREADABLE, told

#: Name of the file in the folder of the graphs.
SETTINGS_FILE: Final = "qwen3vl.json"

Count = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0)]
Colour = tuple[float, float, float]


class VisionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and ids of one model.

    Attributes:
        image_token: Stands once for each merged patch of an image.
        video_token: The same for a video.
        vision_start: Before an image, and before each frame of a video.
        vision_end: Behind it.
        grid_side: Side of the square table of learned positions.
        hidden: Numbers of a visual embedding, as of a token's.
        patch: Side of a patch in pixels.
        merge: Patches of a side that become one token.
        temporal: Frames that one patch spans.
        image_pixels: Fewest and most pixels of an image after resizing.
        video_pixels: The same for all frames of a video together.
        frame_tokens: Most tokens of one frame of a video.
        mean: Of red, green and blue, each in ``[0, 1]``, taken off before the division.
        deviation: What the difference is divided by.
    """

    image_token: TokenId
    video_token: TokenId
    vision_start: TokenId
    vision_end: TokenId
    grid_side: Count
    hidden: Count
    patch: Count = 16
    merge: Count = 2
    temporal: Count = 2
    image_pixels: tuple[Count, Count] = (4096, 1_843_200)
    video_pixels: tuple[Count, Count] = (4096, 15_728_640)
    frame_tokens: Count = 768
    mean: Colour = (0.5, 0.5, 0.5)
    deviation: Colour = (0.5, 0.5, 0.5)

    @property
    def factor(self) -> int:
        """Pixels of a token's side; sides of a resized frame are multiples of it."""
        return self.patch * self.merge

    @property
    def patch_size(self) -> int:
        """Numbers of one patch: colours, frames, rows, columns."""
        return 3 * self.temporal * self.patch * self.patch

    @classmethod
    def load(cls, folder: str | Path) -> VisionSettings:
        """Read the settings of a folder.

        Raises:
            ExportError: They are missing or malformed.
        """
        file = Path(folder) / SETTINGS_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise ExportError(f"vision settings {str(file)!r}: {error.strerror or error}; run the export") from None
        except UNREADABLE as error:
            raise ExportError(f"vision settings {str(file)!r}: {told(error)}; run the export again") from None

    def save(self, folder: str | Path) -> None:
        """Write the settings into a folder."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        (Path(folder) / SETTINGS_FILE).write_bytes(content + b"\n")
