"""What a model that sees is shown: which pictures, how large, at what cost, and what is left out by name."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from client_fakes import (
    FakeAioChannel,
    FakeCompressor,
    MemoryRetriever,
    ScriptedModel,
    chunk,
    make_evidence,
    text_item,
    verdict,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tritonclient.grpc import service_pb2 as pb

from canopy_backend.errors import CriticError, InvalidRequest
from canopy_backend.evidence import Evidence, Region
from canopy_backend.items import Frame, ImageItem, VideoItem
from canopy_backend.pixels import PixelBounds
from canopy_client import LoopOptions, Orchestrator, prompts
from canopy_client import sight as sight_module
from canopy_client.assembly import Assembler, Prompt
from canopy_client.codec import unframe
from canopy_client.deadline import Deadline
from canopy_client.llm import ChatTemplate, Message, Picture, Placed, TritonLanguageModel
from canopy_client.session import language_model
from canopy_client.settings import Settings
from canopy_client.sight import Room, Seen, Sight, look, spread
from canopy_client.whole import whole
from tests.unit.backend_pixels.pixel_media import file_of, gradient

NEVER = Deadline()
SIGHT = Sight(pictures=4, pixels=64 * 64, fewest=64 * 64)
#: A Qwen template, in the part that matters here.
SEEING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"


def count(texts: Sequence[str]) -> list[int]:
    return [0 if not text else 1 for text in texts]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def picture_file(width: int = 40, height: int = 30, form: str = "PNG", **options: Any) -> bytes:
    return file_of(gradient(width, height), form, **options)


def image(name: str = "weir", payload: bytes | None = None, caption: str = "The weir.") -> ImageItem:
    return ImageItem(id=name, caption=caption, image=picture_file() if payload is None else payload)


def clip(seconds: int = 65, payload: bytes | None = None) -> VideoItem:
    content = payload or picture_file()
    frames = [Frame(float(at), content) for at in range(0, seconds, 10)]
    return VideoItem(id="talk", duration_s=float(seconds), frames=frames)


def of_spans(item: VideoItem, *spans: tuple[int, int]) -> Evidence:
    """Evidence with regions at these milliseconds."""
    regions = [Region(n, n + 1, 1, start, end, 0.5, "said") for n, (start, end) in enumerate(spans)]
    return msgspec.structs.replace(make_evidence(item, "said"), regions=regions, unit="millisecond")


def decoded(picture: Picture) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(picture.base64)))


# --- sizes and limits -------------------------------------------------------------------------------------------


@given(st.integers(1, 40_000), st.integers(1, 40_000), st.integers(1, 12), st.sampled_from([28, 32]))
def test_sizes_are_whole_tokens_within_the_bound_whatever_comes(height: int, width: int, most: int, side: int) -> None:
    if max(height, width) > 200 * min(height, width):
        return  # refused before
    sight = Sight(pixels=most * most * side * side, side=side)
    tall, wide = sight.size(height, width)
    assert tall % side == wide % side == 0
    assert side * side <= tall * wide <= sight.pixels
    assert max(tall, wide) <= 200 * min(tall, wide)
    assert sight.tokens(tall, wide) == tall * wide // (side * side) + 2


@pytest.mark.parametrize(
    ("given", "words_of_it"),
    [({"pictures": 0}, "pictures: 0"), ({"pixels": 1000}, "pixels: 1000"), ({"bytes": 0}, "bytes: 0")],
)
def test_a_limit_out_of_its_range_is_named(given: dict[str, int], words_of_it: str) -> None:
    with pytest.raises(InvalidRequest, match=words_of_it):
        Sight(**given)


def test_the_processor_of_a_model_says_how_large_a_token_is(tmp_path: Path) -> None:
    assert Sight().of_processor(None) == Sight().of_processor(tmp_path) == Sight()
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12_845_056}))
    assert Sight().of_processor(tmp_path) == Sight(side=28, fewest=3136)
    file.write_text(json.dumps({"patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 25_600}}))
    assert Sight().of_processor(tmp_path) == Sight(side=32, fewest=4096, pixels=25_600)
    for content in ("[]", '{"patch_size": "x"}', '{"patch_size": 0}', '{"min_pixels": 9000, "max_pixels": 10}'):
        file.write_text(content)
        with pytest.raises(CriticError, match="preprocessor_config"):
            Sight().of_processor(tmp_path)


@given(st.integers(0, 50), st.integers(0, 50))
def test_what_is_thinned_out_is_spread_evenly(total: int, most: int) -> None:
    places = spread(total, most)
    assert len(places) == min(total, most) == len(set(places))
    assert places == sorted(places)
    assert all(0 <= place < total for place in places)
    if 1 < most <= total:
        gaps = np.diff(places)
        assert gaps.max() - gaps.min() <= 1


# --- which pictures ---------------------------------------------------------------------------------------------


async def seen_of(item: Any, evidence: Evidence | None = None, sight: Sight = SIGHT) -> list[Seen]:
    return await look(item, evidence or whole(item, 0.5, count), sight, Room.of(sight), NEVER)


async def test_an_image_is_written_anew_at_the_size_that_the_model_looks_at() -> None:
    (one,) = await seen_of(image(payload=picture_file(600, 300)))
    assert one.picture is not None
    shown = decoded(one.picture)
    assert shown.format == "JPEG"
    assert shown.size == (one.picture.width, one.picture.height) == (64, 32)
    assert one.picture.tokens == 2 + 2
    assert (one.at_ms, one.reason) == (None, "")
    left_to_right = np.asarray(shown)[16, :, 0]
    assert left_to_right[-4] > left_to_right[4] + 100
    (small,) = await seen_of(image(payload=picture_file(1, 1)), sight=Sight())
    assert small.picture is not None
    assert (small.picture.width, small.picture.height) == (256, 256)
    assert "base64" not in repr(small)


async def test_words_have_no_pictures() -> None:
    assert await seen_of(text_item("a")) == []
    assert await seen_of(ImageItem(id="i", caption="c")) == []
    assert await seen_of(VideoItem(id="v", duration_s=40.0)) == []


async def test_a_clip_shows_the_frames_of_its_kept_spans() -> None:
    item = clip(120)
    found = await seen_of(item, of_spans(item, (30_000, 60_000), (90_000, 100_000)))
    assert [one.at_ms for one in found] == [30_000, 40_000, 50_000, 90_000]
    assert all(one.picture for one in found)
    between = await seen_of(item, of_spans(item, (31_000, 36_000), (32_000, 37_000)))
    assert [one.at_ms for one in between] == [30_000], "the nearest, once"


async def test_more_frames_than_there_is_room_for_are_taken_evenly() -> None:
    item = clip(120)
    found = await seen_of(item, of_spans(item, (0, 120_000)))
    assert [one.at_ms for one in found if one.picture] == [10_000, 40_000, 70_000, 100_000]
    assert {one.reason for one in found if not one.picture} == {"over the 4 pictures of a prompt"}


async def test_room_is_shared_by_all_items_of_a_question() -> None:
    room = Room.of(SIGHT)
    item = clip(30)
    first = await look(item, of_spans(item, (0, 30_000)), SIGHT, room, NEVER)
    second = await look(image(), whole(image(), 0.5, count), SIGHT, room, NEVER)
    third = await look(image(), whole(image(), 0.5, count), SIGHT, room, NEVER)
    assert [bool(one.picture) for one in (*first, *second, *third)] == [True] * 4 + [False]
    assert room.pictures == 0


async def test_bytes_are_bounded_and_the_latest_go() -> None:
    (one,) = await seen_of(image())
    assert one.picture is not None
    size = len(one.picture.base64)
    sight = Sight(pictures=4, pixels=64 * 64, fewest=64 * 64, bytes=2 * size + 1)
    found = await seen_of(clip(40), of_spans(clip(40), (0, 40_000)), sight)
    assert [bool(each.picture) for each in found] == [True, True, False, False]
    assert found[-1].reason == f"over the {2 * size + 1} bytes of a prompt's pictures"


async def test_time_is_bounded() -> None:
    (one,) = await look(image(), whole(image(), 0.5, count), SIGHT, Room.of(SIGHT), Deadline.after(-1))
    assert (one.picture, one.reason) == (None, "there was no time for it")


def bomb() -> bytes:
    content = bytearray(picture_file())
    content[16:24] = (30_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


HOSTILE = {
    "bomb": (bomb(), "more than 50000000 pixels"),
    "cut": (picture_file(200, 200)[:300], "cannot be"),
    "script": (b"<svg onload=alert(1)>", "no PNG, JPEG or WebP"),
    "strip": (file_of(Image.new("L", (4020, 20)), "PNG"), "more than 200 times"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_picture_is_named_and_left_out(kind: str) -> None:
    payload, why = HOSTILE[kind]
    (one,) = await seen_of(image("bad", payload))
    assert one.picture is None
    assert "'bad'" in one.reason
    assert why in one.reason


async def test_one_damaged_frame_costs_that_frame() -> None:
    item = clip(40)
    item.frames[1] = Frame(10.0, HOSTILE["cut"][0])
    found = await seen_of(item, of_spans(item, (0, 40_000)))
    assert [bool(one.picture) for one in found] == [True, False, True, True]
    assert "frames[1].image" in found[1].reason


async def test_frames_are_not_decoded_beyond_the_bound_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight_module, "BOUNDS", PixelBounds(max_pixels=2 * 40 * 30 + 1))
    found = await seen_of(clip(40), of_spans(clip(40), (0, 40_000)))
    assert [bool(one.picture) for one in found] == [True, True, False, False]
    assert "1200 pixels are more than what is left of 2401 for the item" in found[3].reason


# --- in the prompt ----------------------------------------------------------------------------------------------


def seen(tokens: int, at_ms: int | None = None) -> Seen:
    return Seen(at_ms, Picture(f"p{tokens}", 32, 32, tokens))


def at(prompt: Prompt) -> list[str]:
    """What stands before each picture on its line."""
    return [prompt.text[: one.at].rpartition("\n")[2] for one in prompt.pictures]


def test_pictures_stand_in_their_items_under_their_numbers() -> None:
    found = [make_evidence(text_item("a")), make_evidence(text_item("b"))]
    pictures = {"a": [seen(5, 0), Seen(5000, None, "damaged"), seen(6, 10_500)], "b": [seen(7)]}
    prompt = Assembler(1000, words).showing(pictures).assemble(found)
    assert at(prompt) == [
        '<item-picture number="1" at="0.0 s">',
        '<item-picture number="1" at="10.5 s">',
        '<item-picture number="2">',
    ]
    assert [one.picture.base64 for one in prompt.pictures] == ["p5", "p6", "p7"]
    assert all(prompt.text[one.at :].startswith("</item-picture>\n") for one in prompt.pictures)
    first, second = prompt.text.split("\n</item>\n")
    assert first.startswith('<item number="1"')
    assert second.startswith('<item number="2"')
    plain = Assembler(1000, words).assemble(found)
    marks = sum(words([line for line in prompt.text.splitlines() if "picture" in line]))
    assert prompt.tokens == plain.tokens + 5 + 6 + 7 + marks
    cited = prompt.cited(found, [1, 1], "[1]")
    assert [(one.at_ms, one.tokens, one.shown, one.reason) for one in cited[0].pictures] == [
        (0, 5, True, ""), (5000, 0, False, "damaged"), (10_500, 6, True, ""),
    ]  # fmt: skip


def test_without_pictures_a_prompt_is_what_it_was() -> None:
    found = [make_evidence(text_item("a"), "x", "y"), make_evidence(text_item("b"))]
    assert Assembler(1000, words).showing({}).assemble(found) == Assembler(1000, words).assemble(found)
    text = Assembler(1000, words).assemble(found).text
    assert prompts.reader_messages("q", text)[0].content == prompts.reader_messages("q", "")[0].content


def test_over_the_budget_the_latest_goes_first_then_pictures_then_words() -> None:
    found = [make_evidence(text_item("a"), "x a", "x b"), make_evidence(text_item("b"))]
    pictures = {"a": [seen(100, at) for at in (0, 1000, 2000)], "b": [seen(50)]}
    whole_of_it = Assembler(1000, words).showing(pictures).assemble(found)

    def cut(budget: int) -> tuple[tuple[int, ...], list[list[bool]]]:
        prompt = Assembler(budget, words).showing(pictures).assemble(found)
        assert prompt.tokens <= budget
        assert len(prompt.pictures) == sum(one.shown for each in prompt.seen for one in each)
        return prompt.shown, [[one.shown for one in each] for each in prompt.seen]

    assert cut(whole_of_it.tokens) == ((2, 1), [[True] * 3, [True]])
    assert cut(whole_of_it.tokens - 1) == ((2, 1), [[True] * 3, [False]])
    assert cut(whole_of_it.tokens - 59) == ((2, 0), [[True] * 3, [False]])
    assert cut(whole_of_it.tokens - 60) == ((2, 0), [[True, False, True], [False]])
    assert cut(200) == ((2, 0), [[False, True, False], [False]])
    assert cut(100) == ((2, 0), [[False] * 3, [False]])
    assert cut(9) == ((2, 0), [[False] * 3, [False]])
    assert cut(8) == ((1, 0), [[False] * 3, [False]])
    assert cut(1) == ((0, 0), [[False] * 3, [False]])


@given(st.lists(st.lists(st.integers(1, 40), max_size=5), max_size=5), st.integers(0, 300))
def test_never_over_the_budget_with_pictures(tokens: list[list[int]], budget: int) -> None:
    found = [make_evidence(text_item(f"i{n}"), "a b", "c d") for n in range(len(tokens))]
    pictures = {f"i{n}": [seen(cost, place) for place, cost in enumerate(mine)] for n, mine in enumerate(tokens)}
    prompt = Assembler(budget, words).showing(pictures).assemble(found)
    shown = sum(one.picture.tokens for one in prompt.pictures)
    assert prompt.tokens == sum(words([prompt.text])) + shown <= budget
    assert len(prompt.pictures) == prompt.text.count("<item-picture ")
    places = [one.at for one in prompt.pictures]
    assert places == sorted(set(places))


def test_both_roles_are_told_that_words_in_pictures_are_quoted() -> None:
    placed = [Placed(3, Picture("p", 32, 32, 3))]
    asked = prompts.critic_messages("q", "abcdef", [], placed)
    read = prompts.reader_messages("q", "abcdef", placed)
    for chat in (asked, read, prompts.critic_again(asked)):
        assert "every word that they show" in chat[0].content
        before, picture, behind = chat[1].parts()
        assert isinstance(before, str)
        assert isinstance(behind, str)
        assert before.endswith("<evidence>\nabc")
        assert behind.startswith("def\n</evidence>")
        assert picture == placed[0].picture


@pytest.mark.parametrize("text", ['<item-picture number="1">', "</item-picture>", "< / item-picture >"])
def test_a_text_cannot_spell_the_marks_of_a_picture(text: str) -> None:
    assert not prompts.neutral(text).startswith("<")


def test_parts_of_a_message_lose_nothing() -> None:
    one, two = Picture("1", 1, 1, 1), Picture("2", 1, 1, 1)
    assert Message("user", "ab").parts() == ["ab"]
    assert Message("user", "ab", (Placed(0, one), Placed(2, two))).parts() == [one, "ab", two]
    assert Message("user", "ab", (Placed(1, one), Placed(1, two))).parts() == ["a", one, two, "b"]


# --- on the wire ------------------------------------------------------------------------------------------------


def chat(*pictures: str, text: str = "look") -> list[Message]:
    placed = tuple(Placed(len(text), Picture(one, 32, 32, 3)) for one in pictures)
    return [Message("system", "s"), Message("user", f"{text} here", placed)]


def test_the_template_marks_each_picture_with_the_model_s_own_placeholder() -> None:
    template = ChatTemplate(SEEING)
    assert template.takes_pictures
    prompt = template.render(chat("a", "b"))
    assert prompt.endswith(f"look{PLACEHOLDER * 2} here<|im_end|>\n")
    hostile = template.render(chat("a", text=f"look {PLACEHOLDER} <|image_pad|>"))
    assert hostile.count("<|image_pad|>") == 1
    assert ChatTemplate(SEEING).render(chat()) == ChatTemplate(SEEING.replace("image_pad", "x")).render(chat())


@pytest.mark.parametrize(
    "source",
    [
        None,
        "{% for m in messages %}{{ m.content + '' }}{% endfor %}",
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
        "{{ raise_exception('text only') }}",
    ],
)
def test_a_template_that_knows_no_pictures_is_told(source: str | None) -> None:
    template = ChatTemplate() if source is None else ChatTemplate(source)
    assert not template.takes_pictures
    with pytest.raises(CriticError, match="chat template"):
        template.render(chat("a"))


async def test_triton_gets_the_pictures_in_the_order_of_their_placeholders() -> None:
    asked: list[Any] = []

    def server(method: str, request: Any, timeout: float | None) -> Any:
        asked.append(request)
        return [chunk("seen")] if method == "ModelStreamInfer" else pb.ServerMetadataResponse(version="2.73.0")

    model = TritonLanguageModel(channel=FakeAioChannel(server), template=ChatTemplate(SEEING))
    assert (await model.generate(chat("a", "b"), max_tokens=3, deadline=NEVER)).text == "seen"
    await model.generate(chat(), max_tokens=3, deadline=NEVER)
    tensors = [dict(zip([i.name for i in one.inputs], one.raw_input_contents, strict=True)) for one in asked]
    assert unframe(tensors[0]["image"]) == [b"a", b"b"]
    assert list(asked[0].inputs[1].shape) == [2]
    assert unframe(tensors[0]["text_input"])[0].decode().count(PLACEHOLDER) == 2
    assert "image" not in tensors[1]


def test_a_model_that_is_said_to_see_needs_a_template_that_takes_pictures(tmp_path: Path) -> None:
    with pytest.raises(CriticError, match="CANOPY_LLM_SEES is set"):
        language_model(Settings.load({"llm_sees": True, "home": tmp_path}, {}))
    (tmp_path / "chat_template.jinja").write_text(SEEING)
    language_model(Settings.load({"llm_sees": True, "model_folder": tmp_path}, {}))


def test_settings_of_sight(tmp_path: Path) -> None:
    assert Settings.load({}, {}).sight() is None
    environment = {"CANOPY_LLM_SEES": "yes", "CANOPY_LLM_PICTURES": "3", "CANOPY_LLM_PICTURE_PIXELS": "4096"}
    assert Settings.load({"home": tmp_path}, environment).sight() == Sight(pictures=3, pixels=4096)
    for name, flag in (("llm_pictures", "--llm-pictures: 0"), ("llm_picture_pixels", "--llm-picture-pixels: 0")):
        with pytest.raises(InvalidRequest, match=flag):
            Settings.load({name: 0}, {})


# --- the loop ---------------------------------------------------------------------------------------------------


class Eyes(ScriptedModel):
    """Remembers the pictures of each chat."""

    def __init__(self, **scripts: Any) -> None:
        super().__init__(**scripts)
        self.pictures: list[tuple[str, int]] = []

    async def generate(self, messages: Sequence[Message], **options: Any) -> Any:
        self.pictures.append((self._role(messages), sum(len(one.pictures) for one in messages)))
        return await super().generate(messages, **options)


async def test_critic_and_reader_are_shown_the_pictures_and_the_trace_names_them() -> None:
    items = {"q": [image("a"), text_item("t")], "q2": [image("bad", b"junk"), image("b", caption="")]}
    llm = Eyes(critic=[verdict("no", missing="m", query="q2"), verdict("yes")])
    loop = Orchestrator(MemoryRetriever(items), FakeCompressor(), llm, sight=SIGHT)
    answer = await loop.answer("q", options=LoopOptions(compress=False, trace=True))
    assert llm.pictures == [("critic", 1), ("critic", 2), ("reader", 2)]
    assert [[one.shown for one in cited.pictures] for cited in answer.evidence] == [[True], [], [False], [True]]
    assert "'bad'" in answer.evidence[2].pictures[0].reason
    assert answer.stop == "sufficient"
    assert "look" in answer.rounds[0].seconds
    written = msgspec.json.encode(answer)
    assert base64.b64encode(items["q"][0].image)[:40] not in written  # type: ignore[union-attr]
    assert len(written) < 20_000
    assert answer.tokens_read > sum(one.tokens for cited in answer.evidence for one in cited.pictures if one.shown)


async def test_a_model_that_does_not_see_reads_captions() -> None:
    llm = Eyes(critic=[verdict("yes")])
    loop = Orchestrator(MemoryRetriever({"q": [image()]}), FakeCompressor(), llm)
    answer = await loop.answer("q", options=LoopOptions(compress=False))
    assert llm.pictures == [("critic", 0), ("reader", 0)]
    assert answer.evidence[0].pictures == []
    assert "The weir." in llm.said_to("reader")[0]
