"""30 s segments of a clip as fragments, and a run of them as transcript."""

from __future__ import annotations

from typing import Final

import numpy as np

from canopy_backend.fragments.types import Fragments, Spans
from canopy_backend.items import VideoItem

#: Length of a segment in milliseconds (paper, section 3).
SEGMENT_MS: Final = 30_000


def video_spans(duration_s: float) -> Spans:
    """Segments of a clip, int32 ``[F, 2]`` in milliseconds; a rest under 30 s joins the segment before it."""
    duration = max(1, round(duration_s * 1000))
    starts = np.arange(max(1, duration // SEGMENT_MS), dtype=np.int32) * SEGMENT_MS
    spans = np.stack([starts, starts + SEGMENT_MS], axis=1).astype(np.int32)
    spans[-1, 1] = duration
    return spans


def render_video(item: VideoItem, fragments: Fragments, first: int, last: int) -> str:
    """The cues that belong to the segments ``[first, last)``, each once, in time order."""
    start = int(fragments.spans[first, 0])
    end = int(fragments.spans[last - 1, 1])
    final = last == len(fragments.spans)
    lines = []
    for cue in sorted(item.segments, key=lambda cue: (cue.start, cue.end)):
        begin, stop = round(cue.start * 1000), round(cue.end * 1000)
        if (begin < end or final) and (stop > start or begin >= start):
            lines.append(cue.text)
    return "\n".join(lines)
