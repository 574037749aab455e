"""WebVTT and SubRip: the transcript of a clip, an item a file."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

from canopy_backend.errors import InvalidItem
from canopy_backend.items import MAX_DURATION_S, Cue, VideoItem
from canopy_backend.sources.files import item_id, read_utf8, title_of

# A tag begins with a letter, a slash or a time stamp; "a < b" is no tag and stays.
_TAG: Final = re.compile(r"</?[a-zA-Z][^<>]*>|</>|<\d+:[\d:.]+>|\{\\[^{}]*\}")


def read_transcript(path: Path) -> Iterator[VideoItem]:
    """The cues of a ``.vtt`` or ``.srt`` file, tags left out; the clip ends with its last cue."""
    import webvtt  # Only clients read files, and only they have it.

    text = read_utf8(path)
    try:
        parsed = webvtt.WebVTT.from_buffer(StringIO(text), format=path.suffix.lower()[1:])
    except (webvtt.errors.MalformedFileError, webvtt.errors.MalformedCaptionError) as error:
        raise InvalidItem(f"{path}: not a transcript ({error})") from None
    except ValueError as error:  # of a time stamp with more digits than Python reads
        raise InvalidItem(f"{path}: not a transcript ({error})") from None
    cues: list[Cue] = []
    for caption in parsed.captions:
        words = " ".join(html.unescape(_TAG.sub("", caption.raw_text)).split())
        if words:
            # Compared as whole numbers: the longest stamps are beyond what a float holds.
            start, end = (
                min(stamp.in_milliseconds(), 1000 * MAX_DURATION_S + 1) / 1000
                for stamp in (caption.start_time, caption.end_time)
            )
            cues.append(Cue(start, max(start, end), words))
    duration = max((cue.end for cue in cues), default=0.0)
    if duration <= 0:
        raise InvalidItem(f"{path}: no cue with text and a time", field="segments")
    if duration > MAX_DURATION_S:
        raise InvalidItem(f"{path}: a cue ends after the {MAX_DURATION_S} s that a clip can have", field="segments")
    yield VideoItem(
        id=item_id(path, 0), title=title_of(path), source=path.as_posix(), duration_s=duration, segments=cues
    )
