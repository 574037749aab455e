"""Clips: frames of an MP4 or WebM file, and the transcript beside it where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from canopy_backend.items import VideoItem
from canopy_backend.sources.files import companion, item_id, title_of
from canopy_backend.sources.transcripts import read_transcript

CLIP_SUFFIXES: Final = (".mp4", ".webm")
TRANSCRIPT_SUFFIXES: Final = (".vtt", ".srt")


def read_clip_file(path: Path) -> Iterator[VideoItem]:
    """The clip of an ``.mp4`` or ``.webm`` file, with the cues of ``.vtt`` or ``.srt`` of the same name beside it."""
    from canopy_backend.pixels import with_clip  # PyAV and Pillow are needed from here on.

    places = (companion(path.with_suffix(suffix), path) for suffix in TRANSCRIPT_SUFFIXES)
    transcript = next((place for place in places if place is not None), None)
    cues = next(read_transcript(transcript)).segments if transcript is not None else []
    item = VideoItem(
        id=item_id(path, 0),
        title=title_of(path),
        source=path.as_posix(),
        duration_s=1,
        segments=cues,
        uri=path.as_posix(),
    )
    yield with_clip(item, path)


def has_clip(transcript: Path) -> bool:
    """Whether a transcript's clip lies beside it."""
    return any(transcript.with_suffix(suffix).is_file() for suffix in CLIP_SUFFIXES)
