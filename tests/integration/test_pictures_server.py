"""Items with pictures against the real server, whose encoder reads text: taken, bounded, never decoded."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from canopy_backend.errors import InvalidItem, LimitExceeded
from canopy_backend.items import Cue, Frame, ImageItem, Item, TextItem, VideoItem, without_pictures
from canopy_client import CanopyClient

pytestmark = pytest.mark.server

QUERY = "When is the kiln fired?"
CUES = [Cue(3, 6, "The lid is heavy."), Cue(35, 39, "Fire it at noon."), Cue(70, 74, "Let it cool.")]
ITEMS: list[Item] = [
    ImageItem(id="kiln", title="Kiln", caption="A kiln fired at noon.", image=b"no picture at all"),
    VideoItem(id="film", duration_s=90, segments=CUES, frames=[Frame(10.0 * place, b"x") for place in range(9)]),
    TextItem(id="words", text="The lid is heavy. Fire it at noon."),
]


@pytest.fixture(scope="module")
def canopy(evidence_url: str):
    with CanopyClient(evidence_url, deadline_s=300) as client:
        yield client


def test_an_encoder_of_text_decides_as_it_does_without_pictures(canopy: CanopyClient) -> None:
    bare = [without_pictures(item) for item in ITEMS]
    assert canopy.compress(QUERY, ITEMS) == canopy.compress(QUERY, bare)
    with_pictures, without = canopy.index(ITEMS), canopy.index(bare)
    for one, other in zip(with_pictures, without, strict=True):
        assert np.array_equal(one.embedding, other.embedding)
    indexed = [structs.replace(found.item, tree=found.tree) for found in with_pictures]
    assert canopy.compress(QUERY, indexed) == canopy.compress(QUERY, bare)
    swapped = structs.replace(bare[0], tree=with_pictures[0].tree)
    with pytest.raises(InvalidItem, match="made for other content than the item's"):
        canopy.compress(QUERY, [swapped])


def test_more_pictures_than_a_request_takes_are_sent_in_several(canopy: CanopyClient) -> None:
    most = canopy.limits().max_picture_bytes
    heavy = [ImageItem(id=f"p{place}", caption="A kiln.", image=bytes(most)) for place in range(9)]
    found = canopy.compress(QUERY, heavy)
    assert [one.item_id for one in found] == [item.id for item in heavy]
    assert {one.text for one in found} == {"A kiln."}


def test_pictures_over_a_limit_are_named(canopy: CanopyClient) -> None:
    limits = canopy.limits()
    heavy = ImageItem(id="p", image=bytes(limits.max_picture_bytes + 1))
    with pytest.raises(LimitExceeded, match=r"'p'\): bytes of its pictures: 4194305 is over the limit") as caught:
        canopy.compress(QUERY, [heavy])
    assert caught.value.name == "max_picture_bytes"
    long = VideoItem(id="v", duration_s=90, frames=[Frame(float(place), b"x") for place in range(33)])
    with pytest.raises(LimitExceeded, match=r"'v'\): frames: 33 is over the limit max_frames=32"):
        canopy.index([long])
    (kept,) = canopy.compress(QUERY, [ITEMS[2]])
    assert kept.item_id == "words"
