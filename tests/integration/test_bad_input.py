"""Odd and hostile requests to the real server: a defined answer or a named refusal, and nothing else is lost."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from msgspec import structs
from patience import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from canopy_backend.errors import DeadlineExceeded
from canopy_backend.items import Cue, TableItem, TextItem, VideoItem, encode_item
from canopy_client import CanopyClient, RetryPolicy, codec

pytestmark = pytest.mark.server

GOOD = {"id": "good", "modality": "text", "title": "Kiln", "text": "The lid is heavy. Fire it at noon. Let it cool."}
QUERY = "When is the kiln fired?"


@pytest.fixture(scope="module")
def raw(evidence_url: str):
    with triton.InferenceServerClient(evidence_url) as client:
        yield client


@pytest.fixture(scope="module")
def canopy(evidence_url: str):
    with CanopyClient(evidence_url, deadline_s=4 * PATIENCE_S) as client:
        yield client


def strings(name: str, values: list[bytes]) -> triton.InferInput:
    tensor = triton.InferInput(name, [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array(values, dtype=object))
    return tensor


def compress(
    raw: triton.InferenceServerClient, items: list[object], query: bytes = QUERY.encode(), model: str = "compress"
) -> list[dict]:
    payloads = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in items]
    reply = raw.infer(model, [strings("QUERY", [query]), strings("ITEMS", payloads)], client_timeout=8 * PATIENCE_S)
    return [json.loads(blob) for blob in reply.as_numpy("EVIDENCE")]


def refusal(raw: triton.InferenceServerClient, items: list[object], query: bytes = QUERY.encode()) -> str:
    with pytest.raises(InferenceServerException) as caught:
        compress(raw, items, query)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT", caught.value
    (evidence,) = compress(raw, [GOOD])
    assert evidence["item_id"] == "good", "the server goes on serving"
    return str(caught.value.message())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\xff\xfe", ["item 1"]),
        (b'{"id": "x", "modality": "text", "text": "\xff"}', ["item 1"]),
        (b'{"id": "x", "modality": "text", ', ["item 1"]),
        (b"", ["item 1"]),
        (b"[1, 2]", ["item 1"]),
        ({"id": "x", "modality": "smell", "text": "a"}, ["item 1", "'x'", "modality"]),
        ({"id": "x", "modality": "text"}, ["item 1", "'x'", "text"]),
        ({"id": "x", "modality": "text", "text": 5}, ["item 1", "'x'", "text"]),
        ({"id": "", "modality": "text", "text": "a"}, ["item 1", "id"]),
        ({"id": "good", "modality": "text", "text": "a"}, ["item 1", "'good'", "id", "item 0"]),
        ({"id": "x", "modality": "table", "columns": [], "rows": []}, ["item 1", "'x'", "columns"]),
        ({"id": "x", "modality": "table", "columns": ["a"], "rows": [["1", "2"]]}, ["item 1", "'x'", "rows[0]"]),
        ({"id": "x", "modality": "video", "duration_s": 0}, ["item 1", "'x'", "duration_s"]),
        ({"id": "x", "modality": "text", "text": "a", "tree": "AAAA"}, ["item 1", "'x'", "tree"]),
        ({"id": "x", "modality": "text", "text": "a", "tree": "!"}, ["item 1", "'x'", "tree"]),
        (b"[" * 100_000, ["item 1"]),
        ({"id": "x", "modality": "text", "text": "word " * 1_100_000}, ["item 1", "'x'", "max_item_bytes"]),
        (
            {"id": "x", "modality": "table", "columns": ["n"], "rows": [[str(n)] for n in range(10_000)]},
            ["item 1", "'x'", "max_fragments"],
        ),
    ],
    ids=str,
)
def test_a_bad_item_is_named(raw: triton.InferenceServerClient, bad: object, words: list[str]) -> None:
    message = refusal(raw, [GOOD, bad])
    for word in words:
        assert word in message


@pytest.mark.parametrize("query", [b"", b"   \n", b"\xff", b"q" * 9000, b"why? " * 400])
def test_a_bad_query_is_named(raw: triton.InferenceServerClient, query: bytes) -> None:
    assert "query" in refusal(raw, [GOOD], query).lower()


def test_too_many_items_for_one_request(raw: triton.InferenceServerClient) -> None:
    assert "max_items" in refusal(raw, [{**GOOD, "id": str(n)} for n in range(300)])


def test_the_client_splits_what_is_too_many(canopy: CanopyClient) -> None:
    items = [{**GOOD, "id": str(n)} for n in range(300)]
    evidences = canopy.compress(QUERY, items)
    assert [one.item_id for one in evidences] == [str(n) for n in range(300)]
    assert len({tuple((r.first, r.last) for r in one.regions) for one in evidences}) == 1


def test_no_items_is_no_evidence(canopy: CanopyClient) -> None:
    assert canopy.compress(QUERY, []) == []


@pytest.mark.parametrize(
    ("item", "fragments"),
    [
        (TextItem(id="empty", text=""), 1),
        (TextItem(id="blank", text="  \n"), 1),
        (TextItem(id="nul", text="The lid\x00 is heavy. Fire it at noon.\x00"), 2),
        (TextItem(id="dots", text="...\n\n.\n"), 1),
        (TableItem(id="header", columns=["glaze", "cone"], rows=[]), 1),
        (TableItem(id="row", columns=["glaze", "cone"], rows=[["celadon", "9"]]), 1),
        (TableItem(id="ragged", columns=["glaze", "cone"], rows=[["celadon"], [], ["shino", "10"]]), 3),
        (VideoItem(id="short", duration_s=20, segments=[Cue(0, 4, "We fire at noon.")]), 1),
        (VideoItem(id="mute", duration_s=95, segments=[]), 3),
    ],
    ids=lambda value: getattr(value, "id", None),
)
def test_odd_items_keep_at_least_one_region(canopy: CanopyClient, item: object, fragments: int) -> None:
    (evidence,) = canopy.compress(QUERY, [item])
    assert evidence.fragments == fragments
    assert evidence.regions
    if fragments == 1:
        assert evidence.whole


def test_a_trailing_nul_survives(canopy: CanopyClient) -> None:
    item = TextItem(id="nul", text="Fire it at noon.\x00")
    (evidence,) = canopy.compress(QUERY, [item])
    assert evidence.regions[-1].text == item.text


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("QUERY", strings("QUERY", [b"one", b"two"])),
        ("ITEMS", triton.InferInput("ITEMS", [1], "INT32").set_data_from_numpy(np.ones(1, np.int32))),
    ],
    ids=["two queries", "items as numbers"],
)
def test_a_wrong_tensor_is_named(raw: triton.InferenceServerClient, name: str, tensor: triton.InferInput) -> None:
    inputs = {"QUERY": strings("QUERY", [b"q"]), "ITEMS": strings("ITEMS", [json.dumps(GOOD).encode()]), name: tensor}
    with pytest.raises(InferenceServerException) as caught:
        raw.infer("compress", list(inputs.values()))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert name in str(caught.value)


def test_an_unknown_parameter_is_refused_by_name(raw: triton.InferenceServerClient) -> None:
    inputs = [strings("QUERY", [b"q"]), strings("ITEMS", [json.dumps(GOOD).encode()])]
    with pytest.raises(InferenceServerException, match="canopy_treshold") as caught:
        raw.infer("compress", inputs, parameters={"canopy_treshold": "0.5"})
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_tree_of_another_text_and_a_damaged_tree_are_refused(
    raw: triton.InferenceServerClient, canopy: CanopyClient
) -> None:
    (indexed,) = canopy.index([GOOD])
    good = indexed.tree
    assert compress(raw, [{**GOOD, "tree": base64.b64encode(good).decode()}])
    for blob in (good[:-1], good[: len(good) // 2], good[:40] + bytes([good[40] ^ 1]) + good[41:], good + b"\0"):
        assert "tree" in refusal(raw, [{**GOOD, "tree": base64.b64encode(blob).decode()}])
    other = {**GOOD, "text": GOOD["text"] + " Open it.", "tree": base64.b64encode(good).decode()}
    assert "tree" in refusal(raw, [other])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD, ["item 1", "'good'", "id", "item 0"]),
        ({**GOOD, "id": "x"}, ["item 1", "'x'", "tree", "'compress'"]),
        ({"id": "x", "modality": "smell", "tree": "AAAA"}, ["item 1", "'x'", "modality"]),
        ({"id": "x", "modality": "text", "text": "a", "tree": ""}, ["item 1", "'x'", "tree"]),
        (b'{"tree": ', ["item 1"]),
    ],
    ids=str,
)
def test_a_bad_item_is_named_on_the_short_way_too(
    raw: triton.InferenceServerClient, canopy: CanopyClient, bad: object, words: list[str]
) -> None:
    (indexed,) = canopy.index([GOOD])
    good = {**GOOD, "tree": base64.b64encode(indexed.tree).decode()}
    with pytest.raises(InferenceServerException) as caught:
        compress(raw, [good, bad], model="compress_indexed")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT", caught.value
    assert all(word in str(caught.value.message()) for word in words), caught.value
    with pytest.raises(InferenceServerException, match="query"):
        compress(raw, [good], b"  ", model="compress_indexed")
    assert compress(raw, [good], model="compress_indexed")[0]["item_id"] == "good"


def test_bad_requests_leave_the_others_in_flight_alone(raw: triton.InferenceServerClient, evidence_url: str) -> None:
    answers: list[list[dict]] = []
    codes: list[grpc.StatusCode | str] = []

    def good() -> None:
        with triton.InferenceServerClient(evidence_url) as client:
            for _ in range(10):
                answers.append(compress(client, [GOOD]))

    def bad() -> None:
        with triton.InferenceServerClient(evidence_url) as client:
            for _ in range(10):
                try:
                    compress(client, [GOOD, {"id": "x", "modality": "smell"}])
                except InferenceServerException as error:
                    codes.append(error.status())

    threads = [threading.Thread(target=target) for target in (good, bad, good, bad)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=4 * PATIENCE_S)
    assert len(answers) == 20
    assert len({json.dumps(answer) for answer in answers}) == 1
    assert codes == ["StatusCode.INVALID_ARGUMENT"] * 20


def long_item(sentences: int) -> bytes:
    """An item of which each sentence takes long to encode, as no two have a word in common."""
    words = np.random.default_rng(11).integers(10_000, 99_999, (sentences, 90))
    text = ". ".join("He said " + " ".join(map(str, row)) for row in words.tolist())
    return encode_item(TextItem(id="long", text=text))


def answered(raw: triton.InferenceServerClient, model: str) -> int:
    return raw.get_inference_statistics(model).model_stats[0].inference_stats.success.count


def answered_once_settled(raw: triton.InferenceServerClient, *models: str) -> list[int]:
    """The same when no figure has changed for a second: Triton counts a request after it has sent the answer."""
    seen: list[list[int]] = []
    for _ in range(100):
        seen.append([answered(raw, model) for model in models])
        if len(seen) > 5 and all(figures == seen[-1] for figures in seen[-6:]):
            return seen[-1]
        time.sleep(0.2)
    pytest.fail(f"the server did not come to rest: {seen[-6:]}")


def wait_until_planned(raw: triton.InferenceServerClient, before: int) -> None:
    """Until one more request has left the first step for the encoder; ``before`` is the count of a server at rest."""
    eventually(lambda: answered(raw, "hierarchy") > before, "the request never left the first step")


async def ask(stub: Any, payload: bytes) -> tuple[str, float, str]:
    """Code of the answer, the moment at which it came, and its text."""
    try:
        reply = await stub.ModelInfer(codec.compress_request(QUERY, [payload]), timeout=8 * PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name, time.monotonic(), error.details() or ""
    (evidence,) = codec.compress_response(reply, 1, trace=False)
    return "OK", time.monotonic(), evidence.text


async def test_a_full_queue_refuses_at_once_and_keeps_what_it_took(
    raw: triton.InferenceServerClient, evidence_url: str
) -> None:
    """Many more requests than the node encoder's queue holds, while it is busy with a long one.

    A busy machine may take longer to send them than the encoder is busy; it is then kept busy for longer.
    """
    (alone,) = compress(raw, [GOOD])
    async with grpc.aio.insecure_channel(evidence_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for sentences in (40, 120, 360):
            (planned,) = await asyncio.to_thread(answered_once_settled, raw, "hierarchy")
            long = asyncio.create_task(ask(stub, long_item(sentences)))
            await asyncio.to_thread(wait_until_planned, raw, planned)
            answers = await asyncio.gather(*(ask(stub, json.dumps(GOOD).encode()) for _ in range(400)))
            code, until, words = await long
            assert code == "OK", words
            refusals = [answer for answer in answers if answer[0] != "OK"]
            accepted = [answer for answer in answers if answer[0] == "OK"]
            assert {code for code, _, _ in refusals} <= {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}, refusals[0]
            assert len(accepted) >= 256, "what it holds is answered"
            assert {text for _, _, text in accepted} == {alone["text"]}
            if refusals and max(at for _, at, _ in refusals) < until:
                break
        else:
            pytest.fail(f"{len(refusals)} were refused; the queue is bounded, and refuses without a wait in it")
    assert max(at for _, at, _ in refusals) < min(at for _, at, _ in accepted)
    assert compress(raw, [GOOD]) == [alone]


@pytest.mark.parametrize(
    ("waited_s", "timeout_us", "words"),
    [
        (-600, 0, None),  # so that a machine that stands still for a moment does not make it late
        (-600, 600_000_000, None),
        (2, 0, "waited [0-9.]+ s for its turn"),
        (2, 60_000_000, "max_wait_ms"),
        (0.5, 100_000, "0.1 s, was over before its turn came"),
    ],
)
def test_a_request_with_trees_that_waited_too_long_for_its_last_step_is_refused_there(
    raw: triton.InferenceServerClient, canopy: CanopyClient, waited_s: float, timeout_us: int, words: str | None
) -> None:
    """What compress_indexed hands to its last step, sent to it directly with an arrival in the past."""
    item = TextItem(id="good", title="Kiln", text=GOOD["text"])
    indexed = structs.replace(item, tree=canopy.index([item])[0].tree)
    embedding = triton.InferInput("QUERY_EMBEDDING", [1, 384], "FP32")
    embedding.set_data_from_numpy(canopy.embed_query([QUERY]))
    since = triton.InferInput("ARRIVAL", [1], "INT64")
    since.set_data_from_numpy(np.array([time.monotonic_ns() - int(waited_s * 1e9)]))
    inputs = [strings("ITEMS", [encode_item(indexed)]), embedding, since]
    if words is None:
        reply = raw.infer("refinement", inputs, timeout=timeout_us)
        assert [json.loads(reply.as_numpy("EVIDENCE")[0])] == compress(raw, [GOOD])
        return
    with pytest.raises(InferenceServerException, match=words):
        raw.infer("refinement", inputs, timeout=timeout_us)


def test_a_request_past_its_deadline_goes_no_further_than_its_step(
    raw: triton.InferenceServerClient, evidence_url: str
) -> None:
    compress(raw, [GOOD])
    planned, encoded, refined = answered_once_settled(raw, "hierarchy", "node_encoder", "refinement")
    with CanopyClient(evidence_url, retry=RetryPolicy(attempts=1)) as client, ThreadPoolExecutor(8) as pool:
        client.limits()
        long = pool.submit(compress, raw, [long_item(60)])
        wait_until_planned(raw, planned)
        late = [pool.submit(client.compress, QUERY, [{**GOOD, "id": f"{n}"}], deadline_s=0.5) for n in range(6)]
        for one in late:
            with pytest.raises(DeadlineExceeded):
                one.result(timeout=PATIENCE_S)
        assert not long.done(), "the encoder was busy all the time"
        assert long.result(timeout=8 * PATIENCE_S)
    assert compress(raw, [GOOD]), "what waited in front of this one is settled"
    eventually(lambda: answered(raw, "refinement") >= refined + 2, "the server never counted")
    encoded_then, refined_then = answered_once_settled(raw, "node_encoder", "refinement")
    assert refined_then - refined == 2
    assert encoded_then - encoded == 2, "the late ones left the encoder's queue without being encoded"
