"""200 items of four modalities with random words and pictures, small enough to be encoded in seconds."""

from __future__ import annotations

from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image

from canopy_backend.items import Cue, Frame, ImageItem, Item, TableItem, TextItem, VideoItem

QUERIES: Final = ("Which ships carried grain?", "the crane at the weir")
#: Items of each modality.
_EACH: Final = 50
_WORDS: Final = (
    "the", "old", "harbour", "ships", "grain", "timber", "light", "keeper", "north", "quay", "winter", "storm",
    "mill", "weir", "crane", "gate",
)  # fmt: skip


def trees() -> list[Item]:
    """Texts, tables, pictures with and without words, clips with and without a transcript, and both without pixels."""
    random = np.random.default_rng(13)
    made: list[Item] = []
    for place in range(_EACH):
        made += [_text(random, place), _table(random, place), _image(random, place), _video(random, place)]
    return made


def picture(random: np.random.Generator, height: int, width: int) -> bytes:
    """A PNG file of noise."""
    file = BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def _sentence(random: np.random.Generator) -> str:
    return " ".join(random.choice(_WORDS, 7)).capitalize() + "."


def _text(random: np.random.Generator, place: int) -> Item:
    sentences = " ".join(_sentence(random) for _ in range(4 + place % 5))
    return TextItem(id=f"text{place}", title=str(random.choice(_WORDS)), text=sentences)


def _table(random: np.random.Generator, place: int) -> Item:
    rows = [[str(1900 + row), str(random.choice(_WORDS)), str(random.integers(99))] for row in range(3 + place % 4)]
    return TableItem(id=f"table{place}", columns=["year", "cargo", "ships"], rows=rows, caption=_sentence(random))


def _image(random: np.random.Generator, place: int) -> Item:
    """One in five has a caption alone, the others a picture, half of them with words."""
    if place % 5 == 4:
        return ImageItem(id=f"image{place}", title="A view", caption=_sentence(random))
    caption = _sentence(random) if place % 2 else ""
    return ImageItem(id=f"image{place}", caption=caption, image=picture(random, 40 + place, 64))


def _video(random: np.random.Generator, place: int) -> Item:
    """One in five has a transcript alone, the others frames, half of them with a transcript."""
    cues = [Cue(start, start + 20, _sentence(random)) for start in range(0, 100, 25)]
    if place % 5 == 4:
        return VideoItem(id=f"video{place}", duration_s=120, segments=cues)
    frames = [Frame(float(at), picture(random, 48, 48)) for at in range(5, 120, 20)]
    return VideoItem(id=f"video{place}", duration_s=120, frames=frames, segments=cues if place % 2 else [])
