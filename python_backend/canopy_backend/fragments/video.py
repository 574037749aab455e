"""30 s segments of a clip as fragments, and a run of them as transcript."""

from __future__ import annotations

from typing import Final

import numpy as np

from canopy_backend.errors import InvalidItem
from canopy_backend.fragments.types import Spans
from canopy_backend.items import VideoItem

#: Length of a segment in milliseconds (the paper's leaf).
SEGMENT_MS: Final = 30_000
#: Longest clip: what an int32 span can hold, about 24 days.
_LONGEST_MS: Final = 2**31 - 1


def video_spans(item: VideoItem) -> Spans:
    """Segments of a clip, int32 ``[F, 2]`` in milliseconds; a rest under 30 s joins the segment before it.

    Raises:
        InvalidItem: The clip is longer than spans can say.
    """
    length = max(1, round(item.duration_s * 1000))
    if length > _LONGEST_MS:
        raise InvalidItem(f"{item.duration_s} s is longer than a clip can be", item_id=item.id, field="duration_s")
    edges = np.arange(max(1, length // SEGMENT_MS) + 1, dtype=np.int32) * np.int32(SEGMENT_MS)
    edges[-1] = length
    return np.stack([edges[:-1], edges[1:]], axis=1)


class Transcript:
    """The cues of a clip in time order, and the segments that each belongs to.

    A cue belongs to every segment that it overlaps, one without length to the segment that holds its start, and one
    behind the clip's end to the last segment, so nothing that was said is lost.
    """

    def __init__(self, item: VideoItem, n_segments: int) -> None:
        cues = sorted(item.segments, key=lambda cue: (cue.start, cue.end))
        self.texts = [text for cue in cues if (text := cue.text.strip())]
        spoken = [cue for cue in cues if cue.text.strip()]
        bounds = np.array([(cue.start, cue.end) for cue in spoken], np.float64).reshape(-1, 2)
        # Twice the longest clip is beyond every segment, and still fits an integer.
        starts, ends = np.rint(np.minimum(bounds * 1000, 2.0 * _LONGEST_MS)).astype(np.int64).T
        self.first = np.minimum(starts // SEGMENT_MS, n_segments - 1)
        self.last = np.minimum(np.maximum(ends - 1, starts) // SEGMENT_MS, n_segments - 1)

    def lines(self, first: int, last: int) -> list[int]:
        """Cues of the segments ``[first, last)``, each once, in time order."""
        return [int(cue) for cue in np.flatnonzero((self.first < last) & (self.last >= first))]

    def render(self, first: int, last: int) -> str:
        """The text of these cues, one a line."""
        return "\n".join([self.texts[cue] for cue in self.lines(first, last)])
