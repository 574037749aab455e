"""The critic's model over the real vLLM: shapes, refusals, overlap, cancellation, and a restart in mid-session."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from patience import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from canopy_backend.errors import CanopyError
from canopy_client import codec
from canopy_client.codec import CriticChunk, RequestOptions
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Message
from canopy_client.llm.triton import TritonLanguageModel
from canopy_local.state import State

pytestmark = pytest.mark.critic

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SENTENCE = "The capital of France is Paris."
SCHEMA = {
    "type": "object",
    "properties": {"sufficient": {"type": "boolean"}, "gap": {"type": "string", "maxLength": 40}},
    "required": ["sufficient", "gap"],
    "additionalProperties": False,
}


class Raw:
    """The protocol itself: one request, its messages."""

    def __init__(self, url: str) -> None:
        self.channel = grpc.insecure_channel(url)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def request(self, sampling: Any, prompt: str = PROMPT, **flags: bool) -> Any:
        message = codec.critic_request("critic", prompt, {}, RequestOptions())
        for place, tensor in enumerate(message.inputs):
            if tensor.name == "sampling_parameters":
                text = sampling if isinstance(sampling, str) else json.dumps(sampling)
                payload = text.encode()
                message.raw_input_contents[place] = len(payload).to_bytes(4, "little") + payload
            elif tensor.name in flags:
                message.raw_input_contents[place] = bytes([flags.pop(tensor.name)])
        for name, value in flags.items():
            message.inputs.add(name=name, datatype="BOOL", shape=[1])
            message.raw_input_contents.append(bytes([value]))
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        return message

    def messages(self, request: Any, timeout: float = 4 * PATIENCE_S) -> list[pb.ModelStreamInferResponse]:
        """All messages of the answer. Read to the end: a stream left early can keep Triton 24.10 from unloading."""
        return list(self.stub.ModelStreamInfer(iter([request]), timeout=timeout))

    def chunks(self, sampling: Any, prompt: str = PROMPT, **flags: bool) -> list[CriticChunk]:
        return [codec.critic_chunk(one) for one in self.messages(self.request(sampling, prompt, **flags))]


@pytest.fixture
def raw(critic_url: str):
    one = Raw(critic_url)
    yield one
    one.channel.close()


@pytest.fixture
async def model(critic_url: str) -> AsyncIterator[TritonLanguageModel]:
    one = TritonLanguageModel(critic_url)
    yield one
    await one.close()


def test_short_answer(raw: Raw) -> None:
    (chunk,) = [one for one in raw.chunks({"temperature": 0, "max_tokens": 12}) if one.text]
    assert "Paris" in chunk.text
    assert chunk.finish_reason == "stop"
    assert chunk.prompt_tokens == 16
    assert 1 < chunk.completion_tokens <= 12


def test_stream_is_the_answer_in_pieces(raw: Raw) -> None:
    # In bfloat16 the likeliest answer is not the same with a cached prompt, so there is but one to give.
    sampling = {"temperature": 0, "structured_outputs": json.dumps({"choice": [SENTENCE]})}
    (whole,) = [one for one in raw.chunks(sampling) if one.text]
    assert whole.text == SENTENCE
    chunks = raw.chunks(sampling, stream=True)
    assert len([one for one in chunks if one.text]) > 3
    assert "".join(one.text for one in chunks) == SENTENCE
    assert [one.finish_reason for one in chunks if one.finish_reason] == ["stop"]
    assert sum(one.completion_tokens for one in chunks) == whole.completion_tokens
    assert chunks[-1].final


def test_prompt_in_front_unless_excluded(raw: Raw) -> None:
    (chunk,) = [
        one for one in raw.chunks({"max_tokens": 1, "temperature": 0}, exclude_input_in_output=False) if one.text
    ]
    assert chunk.text.startswith(PROMPT)
    assert chunk.text.removeprefix(PROMPT).isalpha()
    with pytest.raises(CanopyError, match="exclude_input_in_output"):
        raw.chunks({}, stream=True, exclude_input_in_output=False)


def test_additional_outputs(raw: Raw) -> None:
    request = raw.request(
        {"temperature": 0, "max_tokens": 3, "logprobs": 2}, return_logprobs=True, return_cumulative_logprob=True
    )
    response = raw.messages(request)[0].infer_response
    values = dict(zip((one.name for one in response.outputs), response.raw_output_contents, strict=True))
    tokens = json.loads(values["logprobs"][4:])
    best = [min(one.values(), key=lambda entry: entry["rank"]) for one in tokens]
    assert len(best) == 3
    (total,) = np.frombuffer(values["cumulative_logprob"], np.float32)
    assert total == pytest.approx(sum(one["logprob"] for one in best), abs=1e-3)


@pytest.mark.parametrize("key", ["structured_outputs", "guided_decoding"])
def test_schema_is_obeyed_without_white_space(raw: Raw, key: str) -> None:
    sampling = {"temperature": 0, "max_tokens": 80, key: json.dumps({"json": SCHEMA})}
    text = "".join(one.text for one in raw.chunks(sampling))
    answer = json.loads(text)
    assert isinstance(answer["sufficient"], bool)
    assert set(answer) == {"sufficient", "gap"}
    assert text == json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


def test_choice_and_regex(raw: Raw) -> None:
    choice = {"temperature": 0, "structured_outputs": json.dumps({"choice": ["red", "green"]})}
    assert "".join(one.text for one in raw.chunks(choice)) in {"red", "green"}
    regex = {"temperature": 0, "structured_outputs": json.dumps({"regex": "[0-9]{3}"})}
    assert "".join(one.text for one in raw.chunks(regex)).isdigit()


def test_numbers_as_text_are_taken(raw: Raw) -> None:
    chunks = raw.chunks({"temperature": "0", "max_tokens": "2"})
    assert sum(one.completion_tokens for one in chunks) == 2


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temprature": 0.5}, "temprature"),
        ({"n": 2}, "'n'"),
        ({"structured_outputs": "{"}, "structured_outputs"),
        ({"structured_outputs": "{}"}, "exactly one"),
        ({"structured_outputs": '{"json": {}, "regex": "a"}'}, "exactly one"),
        ({"structured_outputs": '{"regex": "["}'}, "sampling_parameters"),
        ({"structured_outputs": '{"json": {"type": "nonsense"}}'}, "sampling_parameters"),
        ({"structured_outputs": '{"regex": "a"}', "guided_decoding": '{"regex": "a"}'}, "guided_decoding"),
        ("[1]", "sampling_parameters"),
        ("{", "sampling_parameters"),
    ],
)
def test_bad_sampling_parameter_is_named(raw: Raw, sampling: Any, named: str) -> None:
    with pytest.raises(CanopyError, match=named):
        raw.chunks(sampling)
    assert raw.chunks({"max_tokens": 1}), "the server answers the next request"


def test_long_prompt_is_refused_with_the_counts(raw: Raw) -> None:
    with pytest.raises(CanopyError, match=r"text_input: .* 8\d{3} is over the limit max_model_len=8192"):
        raw.chunks({"max_tokens": 4}, prompt="word " * 8192)


def test_bad_prompts(raw: Raw) -> None:
    with pytest.raises(CanopyError, match="text_input"):
        raw.chunks({}, prompt="")
    request = raw.request({"max_tokens": 1})
    place = [one.name for one in request.inputs].index("text_input")
    request.raw_input_contents[place] = b"\x02\0\0\0\xff\xfe"
    with pytest.raises(CanopyError, match="UTF-8"):
        codec.critic_chunk(raw.messages(request)[0])
    request = raw.request({"max_tokens": 1})
    request.inputs.add(name="image", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\x01\0\0\0x")
    with pytest.raises(CanopyError, match="image"):
        codec.critic_chunk(raw.messages(request)[0])


def test_requests_overlap(critic_url: str, raw: Raw) -> None:
    """A short request that comes later is answered first, so the long one did not block it."""
    long = {"temperature": 0, "max_tokens": 150, "ignore_eos": True}
    finished: dict[str, float] = {}

    def ask(name: str, sampling: dict[str, Any]) -> None:
        one = Raw(critic_url)
        one.chunks(sampling)
        finished[name] = time.monotonic()
        one.channel.close()

    first = threading.Thread(target=ask, args=("long", long))
    first.start()
    time.sleep(0.3)
    ask("short", {"temperature": 0, "max_tokens": 2})
    first.join(timeout=120)
    assert finished["short"] < finished["long"]


def test_cancellation_stops_the_generation(raw: Raw) -> None:
    """As many endless answers as the engine works on at a time: if one went on, the next request would wait."""
    endless = {"max_tokens": 6000, "ignore_eos": True}
    calls = [
        raw.stub.ModelStreamInfer(iter([raw.request(endless, stream=True)]), timeout=8 * PATIENCE_S) for _ in range(8)
    ]
    for call in calls:
        next(call)
    for call in calls:
        call.cancel()
    answer = raw.messages(raw.request({"max_tokens": 2, "temperature": 0}), timeout=PATIENCE_S)
    assert codec.critic_chunk(answer[0]).text


async def test_client_gets_structured_answers_concurrently(model: TritonLanguageModel) -> None:
    asked = [Message("user", "Is the sky green? Answer with the JSON object.")]
    answers = await asyncio.gather(
        *(
            model.generate(asked, max_tokens=60, schema=SCHEMA, deadline=Deadline.after(4 * PATIENCE_S))
            for _ in range(3)
        )
    )
    # Not one text: in bfloat16 it depends on which prompts were computed together, and on the processor.
    assert all(set(json.loads(answer.text)) == {"sufficient", "gap"} for answer in answers)


def test_engine_does_not_outlive_a_killed_server(stack: Any, critic_url: str) -> None:
    """The engine is a process of the model's process of the server: the death of the first ends all three."""
    entry = State.load(stack.settings).servers["critic"]
    assert len(entry.processes) >= 3
    os.kill(entry.pid, signal.SIGKILL)
    eventually(lambda: not entry.processes, "the engine goes on")
    stack.need("critic")


async def test_restart_in_the_middle_of_a_session(stack: Any, model: TritonLanguageModel) -> None:
    asked = [Message("user", "What is the capital of France?")]
    before = await model.generate(asked, max_tokens=10, deadline=Deadline.after(PATIENCE_S))
    stack.down("critic")
    with pytest.raises(CanopyError):
        await model.generate(asked, max_tokens=10, deadline=Deadline.after(3))
    # In this thread: the server ends with the thread that started it.
    stack.need("critic")
    after = await model.generate(asked, max_tokens=10, deadline=Deadline.after(PATIENCE_S))
    assert "Paris" in before.text
    assert "Paris" in after.text
