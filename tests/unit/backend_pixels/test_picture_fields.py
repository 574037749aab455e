"""Pictures as fields of items: on the wire, within limits, and in the hash that trees are told apart by."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import InvalidItem, LimitExceeded
from canopy_backend.items import Cue, Frame, ImageItem, Item, TableItem, TextItem, VideoItem, decode_item, decode_items
from canopy_backend.items import encode_item as encode
from canopy_backend.limits import Limits
from canopy_backend.tree import content_hash

CLIP = VideoItem(id="a", title="t", duration_s=65, segments=[Cue(0, 1.5, "hi")])
PICTURE = ImageItem(id="a", title="t", caption="c")


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=40), st.lists(st.binary(min_size=1, max_size=9), max_size=4))
def test_pictures_survive_the_wire(image: bytes, frames: list[bytes]) -> None:
    items: list[Item] = [
        ImageItem(id="a", image=image),
        VideoItem(id="b", duration_s=40, frames=[Frame(10.0 * place, frame) for place, frame in enumerate(frames)]),
    ]
    assert [decode_item(encode(item)) for item in items] == items


def test_items_without_pictures_are_written_as_before() -> None:
    assert json.loads(encode(PICTURE)) == {"modality": "image", "id": "a", "title": "t", "caption": "c"}
    assert "frames" not in json.loads(encode(CLIP))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"modality": "image", "image": ""}, "image"),
        ({"modality": "image", "image": "no base64"}, "image"),
        ({"modality": "video", "duration_s": 20, "frames": [{"at_s": 0, "image": ""}]}, "frames[0]"),
        ({"modality": "video", "duration_s": 20, "frames": [{"at_s": -1, "image": "AA=="}]}, "frames[0]"),
        ({"modality": "video", "duration_s": 20, "frames": [{"at_s": -0.5, "image": "AA=="}]}, "frames[0]"),
        ({"modality": "video", "duration_s": 20, "frames": [{"at_s": 20.5, "image": "AA=="}]}, "frames[0]"),
        ({"modality": "video", "duration_s": 20, "frames": [{"at_s": 3, "image": "AA=="}] * 2}, "frames[1]"),
        ({"modality": "video", "duration_s": 20, "frames": [{"at_s": 3}]}, "frames[0]"),
    ],
)
def test_a_picture_that_cannot_be_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidItem) as caught:
        decode_items([json.dumps({"id": "a", **fields}).encode()], Limits())
    assert (caught.value.index, caught.value.item_id) == (0, "a")
    assert caught.value.field == field


def test_pictures_count_against_their_own_limits_only() -> None:
    images = [encode(ImageItem(id=name, image=b"x" * 3000)) for name in "ab"]
    assert len(decode_items(images, Limits(max_item_bytes=60))) == 2
    with pytest.raises(LimitExceeded, match=r"item 0 \('a'\): bytes of its pictures: 3000 .* max_picture_bytes=2999"):
        decode_items(images, Limits(max_picture_bytes=2999))
    with pytest.raises(LimitExceeded, match="6000 is over the limit max_request_picture_bytes=5999"):
        decode_items(images, Limits(max_request_picture_bytes=5999))
    clip = encode(VideoItem(id="a", duration_s=60, frames=[Frame(float(at), b"x" * 10) for at in range(33)]))
    with pytest.raises(LimitExceeded, match=r"item 0 \('a'\): frames: 33 is over the limit max_frames=32"):
        decode_items([clip], Limits())
    with pytest.raises(LimitExceeded, match="bytes of its pictures: 330 "):
        decode_items([clip], Limits(max_frames=40, max_picture_bytes=329))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (PICTURE, "0516824abbd6ecac53b6e2f9ad1a9468"),
        (CLIP, "d5faeebec20de11b42e2577475c84bc5"),
        (TextItem(id="a", title="t", text="One. Two."), "fd53eac12bba8030c73ea3516ee874df"),
        (TableItem(id="a", title="t", columns=["a"], rows=[["1"]]), "14d701b785b6b629a5954cf2ac7aa4ab"),
    ],
)
def test_trees_of_items_without_pictures_stay_valid(item: Item, expected: str) -> None:
    assert content_hash(item).hex() == expected


def test_every_byte_of_a_picture_counts_in_the_hash() -> None:
    def clip(*frames: Frame) -> bytes:
        return content_hash(VideoItem(id="a", title="t", duration_s=65, segments=CLIP.segments, frames=[*frames]))

    hashes = [
        content_hash(PICTURE),
        content_hash(ImageItem(id="a", title="t", caption="c", image=b"x")),
        content_hash(ImageItem(id="a", title="t", caption="c", image=b"y")),
        clip(),
        clip(Frame(0, b"x")),
        clip(Frame(1, b"x")),
        clip(Frame(0, b"y")),
        clip(Frame(0, b"x"), Frame(1, b"x")),
    ]
    assert len(set(hashes)) == len(hashes)
    assert content_hash(ImageItem(id="b", title="t", caption="c", image=b"x", uri="u")) == hashes[1]
