"""Whatever is wrong with JSON from outside, the reader's own error comes out: the same law for all who read any."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from canopy_backend.errors import (
    CanopyError,
    CriticError,
    ExportError,
    InvalidItem,
    InvalidRequest,
    RetrievalError,
    TrainingError,
)
from canopy_backend.evidence import decode_evidence
from canopy_backend.items import bring_trees, decode_item
from canopy_backend.limits import Limits
from canopy_backend.manifest import CARD_FILE, MANIFEST_FILE, AdapterCard, EncoderManifest
from canopy_backend.plan_card import PLAN_CARD, PlanCard
from canopy_backend.reading import UNREADABLE, told
from canopy_backend.sources import read_items
from canopy_backend.sources.lines import holds_items
from canopy_backend.triton.options import COMPRESS_OPTIONS, parse_options
from canopy_backend.triton.sampling import parse_sampling
from canopy_client import codec, trace
from canopy_client.classifier import label_of
from canopy_client.critic import parse_verdict
from canopy_client.llm.openai import completion_of
from canopy_client.llm.triton import schema_parameter
from canopy_client.parsing import fields, one_line
from canopy_client.router import ALL, parse_corpora
from canopy_milvus.rows import decode_row
from canopy_training.data import read_questions

ROOT = Path(__file__).resolve().parents[3]
DEEP = 100_000
#: What is wrong in ways that the decoder has errors of four kinds for.
WRONG = {
    "cut": b'{"a',
    "another form": b"[3]",
    "not UTF-8": b'{"id": "\xff", "format": 3}',
    "half a pair": b'{"id": "\xed\xa0\x80", "format": 3}',
    "deep": b"[" * DEEP,
    "deep in a field": b'{"canopy_trace": ' + b"[" * DEEP,
    "deep in an unknown field": b'{"unknown": ' + b'{"a":' * DEEP,
}


def reply(content: bytes) -> object:
    message = pb.ModelInferResponse()
    message.outputs.add(name="EVIDENCE", datatype="BYTES", shape=[1])
    message.raw_output_contents.append(codec.frame([content]))
    return codec.compress_response(message, 1, trace=False)


def file_reader(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def run(content: bytes, folder: Path) -> object:
        (folder / name).write_bytes(content)
        return read(folder)

    return run


READERS: dict[str, tuple[type[CanopyError], Callable[[bytes, Path], object]]] = {
    "item": (InvalidItem, lambda content, _: decode_item(content)),
    "evidence": (InvalidRequest, lambda content, _: decode_evidence(content)),
    "reply": (CanopyError, lambda content, _: reply(content)),
    "completion": (CriticError, lambda content, _: completion_of(content, "m")),
    "row": (
        RetrievalError,
        lambda content, _: decode_row({"item": [content.decode("utf-8", "surrogateescape")], "tree_stored": False}),
    ),
    "manifest": (ExportError, file_reader(MANIFEST_FILE, EncoderManifest.load)),
    "card": (ExportError, file_reader(CARD_FILE, AdapterCard.load)),
    "plan": (ExportError, file_reader(PLAN_CARD, PlanCard.load)),
    "trace": (InvalidRequest, file_reader("t.json", lambda folder: trace.read(folder / "t.json"))),
    "lines": (InvalidItem, file_reader("x.jsonl", lambda folder: list(read_items([folder / "x.jsonl"])))),
    "gold": (TrainingError, file_reader("x.jsonl", lambda folder: read_questions([folder / "x.jsonl"]))),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_raises_its_own_error(reader: str, wrong: str, tmp_path: Path) -> None:
    kind, read = READERS[reader]
    with pytest.raises(kind) as caught:
        read(WRONG[wrong], tmp_path)
    # A nest of brackets is told in words, not shown.
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("wrong", ["cut", "another form", "deep", "deep in a field"])
def test_parameters_that_cannot_be_read_are_the_callers_fault(wrong: str) -> None:
    text = WRONG[wrong].decode() + " canopy_"
    with pytest.raises(InvalidRequest, match="parameters cannot be read"):
        parse_options(text, COMPRESS_OPTIONS)
    with pytest.raises(InvalidRequest, match="sampling_parameters"):
        parse_sampling(text)
    with pytest.raises(InvalidRequest, match="sampling_parameters: 'guided_decoding'"):
        parse_sampling(msgspec.json.encode({"guided_decoding": text}).decode())


def test_a_text_with_half_a_pair_is_refused_where_text_comes_in() -> None:
    with pytest.raises(InvalidRequest, match="cannot be written as UTF-8"):
        parse_options('{"canopy_trace": "\ud800"}', COMPRESS_OPTIONS)
    with pytest.raises(InvalidRequest, match="cannot be written as UTF-8"):
        parse_sampling('{"stop": "\ud800"}')


def test_a_file_of_a_byte_order_mark_alone_holds_no_items(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", b"\xef\xbb\xbf\n\n"), ("b.jsonl", b'\xff{"question": 1}')):
        (tmp_path / name).write_bytes(content)
    assert not holds_items(tmp_path / "a.jsonl")
    assert holds_items(tmp_path / "b.jsonl")
    with pytest.raises(InvalidItem, match=r"b\.jsonl, line 1: "):
        list(read_items([tmp_path]))


def test_a_glance_at_an_item_never_raises() -> None:
    assert not any(bring_trees([content]) for content in WRONG.values())


@given(st.integers(0, 400), st.sampled_from(["[]", "{}"]))
def test_answers_nested_to_any_depth_are_read(depth: int, kind: str) -> None:
    inner = "[" * depth + '"x"' + "]" * depth if kind == "[]" else '{"a":' * depth + '"x"' + "}" * depth
    verdict = parse_verdict(f'{{"sufficient": "no", "query": {inner}}}')
    assert verdict is not None
    # Down to eight levels; what lies below them is nothing.
    whole = "x" if kind == "[]" else "a: " * depth + "x"
    cut = "" if kind == "[]" else "a: " * 8 + "a:"
    assert verdict.query == (whole if depth <= 8 else cut)
    assert label_of(f'{{"label": {inner}}}') == "aggregate"
    assert parse_corpora(f'{{"corpora": {inner}}}') == ALL


def test_answers_of_nothing_but_brackets_are_no_verdict() -> None:
    for text in ("[" * 9000, "{" * 9000, '{"sufficient":' + "[" * 9000, '{"sufficient":' + '{"a":' * 3000):
        assert parse_verdict(text) is None
        assert label_of(text) == "aggregate"
    assert fields('{"sufficient": {"a": ["b", null, true]}}', ["sufficient"]) == {"sufficient": "a: b, , yes"}
    assert one_line([["a", 1], None, False]) == "a, 1, , no"


NINES = "9" * 5000


def test_numbers_longer_than_python_reads_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="max_items"):
        Limits.from_parameters({"max_items": NINES})
    assert schema_parameter(f"2.{NINES}", "vllm", {}) == {"structured_outputs": '{"json":{}}'}


def test_a_finish_reason_that_is_no_text_is_none_of_the_known() -> None:
    message = pb.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="finish_reason", datatype="BYTES", shape=[1])
    message.infer_response.raw_output_contents.append(codec.frame([b"\xffstop"]))
    assert codec.critic_chunk(message).finish_reason == "\ufffdstop"


def test_rows_with_text_that_is_no_base64_are_named() -> None:
    item = '{"modality":"text","id":"a","text":"b"}'
    for tree in ("é", "\ud800", "a", "ab=c"):
        with pytest.raises(RetrievalError, match="row 'a' is not one of this project's"):
            decode_row({"item_id": "a", "item": [item], "tree": [tree], "tree_stored": True})


@pytest.mark.parametrize("profiles", ["{}", '{"p":{}}', '{"p":{"input_ids":[[1],[1],[]]}}'])
def test_a_plan_without_a_shape_is_no_plan(profiles: str, tmp_path: Path) -> None:
    hashed = "0" * 64
    card = f'{{"onnx":{{}},"plan":"{hashed}","tensorrt":"1","capability":"9.0","profiles":{profiles}}}'
    (tmp_path / PLAN_CARD).write_text(card)
    with pytest.raises(ExportError, match="build the plan again"):
        PlanCard.load(tmp_path)


def test_reasons_are_told_without_the_text_that_was_read() -> None:
    for content, words in ((WRONG["deep"], "nested too deeply"), (WRONG["not UTF-8"], "Invalid UTF-8 encoded string")):
        with pytest.raises(UNREADABLE) as caught:
            msgspec.json.decode(content, type=dict[str, str] if content[:1] == b"{" else list)
        assert told(caught.value) == words


def test_nobody_catches_only_some_of_what_the_decoder_raises() -> None:
    """The decoder has errors of four kinds; whoever names one by hand forgets another."""
    forgetful = re.compile(r"except[^\n]*(MsgspecError|RecursionError|msgspec\.DecodeError)")
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for room in ("python_backend", "client", "milvus", "export", "training", "local")
        for path in (ROOT / room).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if forgetful.search(line)
    }
    # These two tell one of the kinds apart, and catch the others behind it.
    kinds = {place.partition(":")[0] for place in found}
    assert kinds <= {"python_backend/canopy_backend/items.py", "client/canopy_client/trace.py"}
