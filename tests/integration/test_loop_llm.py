"""The loop over a language model that misbehaves: a real HTTP server, which answers as the worst ones do."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from openai_server import Behaviour, OpenAIServer, by_role, raw, reply
from patience import PATIENCE_S, soon

from canopy_backend.errors import CriticError, DeadlineExceeded
from canopy_backend.items import Item, TextItem
from canopy_client import LoopOptions, Orchestrator
from canopy_client.deadline import Deadline
from canopy_client.llm import Message, OpenAILanguageModel
from canopy_client.retry import RetryPolicy
from canopy_milvus import Hit

ITEMS = [
    TextItem(id=f"i{number}", title=f"Pump {number}", text=f"Pump {number} was built in 19{number:02}. It still runs.")
    for number in range(40)
]
QUESTION = "When was pump 1 built?"
YES = {"rationale": "r", "answer": "1901", "sufficient": "yes", "missing": "", "query": ""}
NO = {"rationale": "r", "answer": "none", "sufficient": "no", "missing": "its maker", "query": "maker of pump 1"}
ANSWER = reply("In 1901 [1].")
QUICK = RetryPolicy(attempts=2, first_pause_s=0.01)


def verdict(fields: dict[str, str]) -> Behaviour:
    return reply(json.dumps(fields))


class Shelf:
    """A store that finds other items for every query."""

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        first = sum(map(ord, query)) % 30
        found: list[Item] = list(ITEMS[first : first + k])
        return [Hit(item=item, score=0.5, modality=item.modality) for item in found]


class Nobody:
    """Items stay whole in these tests: no evidence server is needed."""

    async def compress(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("compress")


def loop_of(llm: OpenAILanguageModel) -> Orchestrator:
    return Orchestrator(Shelf(), Nobody(), llm, options=LoopOptions(compress=False, k=4))


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer(by_role(critic=verdict(YES), reader=ANSWER)) as one:
        yield one


@pytest.fixture
async def llm(server: OpenAIServer) -> AsyncIterator[OpenAILanguageModel]:
    one = OpenAILanguageModel(server.url, model="m", retry=QUICK)
    yield one
    await one.close()


async def no_work_left(server: OpenAIServer) -> None:
    await soon(lambda: not server.working, "the server is still at work")


async def hang(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(10 * PATIENCE_S)


async def drip(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """A body that never ends, a few bytes at a time: each read is quick, the whole is not."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b'{"a')
        await writer.drain()
        await asyncio.sleep(0.02)


async def flood(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Garbage as fast as it is taken, without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(range(256)) * 256 + b"\r\n")
        await writer.drain()


async def cut(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """The connection ends in the middle of the body."""
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [{"mess')
    await writer.drain()
    writer.close()


async def no_http(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(range(256)))
    await writer.drain()
    writer.close()


async def test_a_server_that_works_is_the_measure(server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    answer = await loop_of(llm).answer(QUESTION)
    assert (answer.stop, answer.text, answer.error) == ("sufficient", "In 1901 [1].", "")
    assert answer.llm_calls == {"critic": 1, "reader": 1}
    assert [one.cited for one in answer.evidence][:2] == [True, False]


async def test_a_server_that_is_down_leaves_the_evidence(server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    server._server.close()
    answer = await loop_of(llm).answer(QUESTION, deadline_s=PATIENCE_S)
    assert (answer.stop, answer.text) == ("reader_failed", "")
    assert len(answer.evidence) == 4
    assert server.url in answer.error


UNUSABLE: list[Any] = [
    pytest.param(cut, id="cut in the middle"),
    pytest.param(no_http, id="no HTTP"),
    pytest.param(flood, id="garbage without end"),
    pytest.param(raw(b"\xff\xfe\x00garbage"), id="garbage"),
    pytest.param(raw(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'), id="not UTF-8"),
    pytest.param(raw(b'{"choices": [{"message": {"content": "\\ud800"}}]}'), id="half a surrogate pair"),
    pytest.param(raw(b'{"choices": []}'), id="no choices"),
    pytest.param(raw(b"[" * 100_000), id="nested"),
    pytest.param(raw(b""), id="empty body"),
    pytest.param(raw(b'{"error": "no such model"}', status="404 Not Found"), id="404"),
    pytest.param(raw(b"content filter", status="400 Bad Request"), id="refused by a filter"),
    pytest.param(raw(b"<html>" * 1000, status="502 Bad Gateway"), id="bad gateway"),
    pytest.param(raw(b"", status="429 Too Many Requests"), id="429"),
    pytest.param(raw(b"", status="307 Temporary Redirect"), id="redirect"),
]


@pytest.mark.parametrize("behaviour", UNUSABLE)
async def test_unusable_replies_leave_the_evidence(
    behaviour: Behaviour, server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server.behaviour = behaviour
    answer = await loop_of(llm).answer(QUESTION, deadline_s=PATIENCE_S)
    assert answer.stop == "reader_failed"
    assert answer.error
    assert "\n" not in answer.error
    assert len(answer.evidence) == 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    await no_work_left(server)
    # The next question is answered over the same client.
    server.behaviour = by_role(critic=verdict(YES), reader=ANSWER)
    assert (await loop_of(llm).answer(QUESTION)).stop == "sufficient"


@pytest.mark.parametrize(
    ("content", "stop", "calls"),
    [
        pytest.param("I am sorry, I cannot help with that.", "critic_failed", 2, id="refuses"),
        pytest.param(None, "critic_failed", 2, id="no content"),
        pytest.param("no no no " * 3000, "critic_failed", 2, id="repeats a word"),
        pytest.param('{"rationale": "' + "\\n" * 2000, "critic_failed", 2, id="line ends without end"),
        pytest.param(json.dumps(NO)[:-5], "no_new_item", 1, id="JSON cut in the query"),
        pytest.param(json.dumps(NO)[:-20], "empty_query", 1, id="JSON cut before the query"),
        pytest.param(json.dumps(YES)[:50], "critic_failed", 2, id="JSON cut before the verdict"),
        pytest.param(json.dumps(NO | {"query": QUESTION.upper()}), "repeated_query", 1, id="repeats the question"),
        pytest.param(json.dumps(NO) * 50, "no_new_item", 1, id="repeats its JSON"),
        pytest.param("{" * 16_000, "critic_failed", 2, id="braces"),
    ],
)
async def test_what_a_critic_may_say(
    content: str | None, stop: str, calls: int, server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    class OneShelf(Shelf):
        async def search(self, query: str, k: int, **options: Any) -> list[Hit]:
            return await super().search("same", k, **options)

    server.behaviour = by_role(critic=reply(content, finish="length"), reader=ANSWER)
    loop = Orchestrator(OneShelf(), Nobody(), llm, options=LoopOptions(compress=False, k=4))
    answer = await loop.answer(QUESTION, deadline_s=PATIENCE_S)
    assert (answer.stop, answer.llm_calls["critic"]) == (stop, calls)
    assert answer.text == "In 1901 [1]."


@pytest.mark.parametrize("field", ["content", "refusal"])
async def test_a_reader_that_refuses_is_quoted(field: str, server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    message = {"content": None, field: "I cannot help with that."}
    server.behaviour = by_role(
        critic=verdict(YES), reader=raw(json.dumps({"choices": [{"message": message}]}).encode())
    )
    answer = await loop_of(llm).answer(QUESTION)
    assert (answer.stop, answer.text) == ("sufficient", "I cannot help with that.")


async def test_a_reader_that_fails_leaves_the_critics_answer(server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    server.behaviour = by_role(critic=verdict(YES), reader=raw(b"", status="500 Internal Server Error"))
    answer = await loop_of(llm).answer(QUESTION)
    assert (answer.stop, answer.text) == ("reader_failed", "1901")
    assert "HTTP 500" in answer.error


@pytest.mark.parametrize("content", [None, "", " \n\t"])
async def test_a_reader_that_says_nothing_has_failed(
    content: str | None, server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    server.behaviour = by_role(critic=verdict(YES), reader=reply(content))
    answer = await loop_of(llm).answer(QUESTION)
    assert (answer.stop, answer.text) == ("reader_failed", "1901")
    assert "an empty answer" in answer.error


@pytest.mark.parametrize("behaviour", [hang, drip])
async def test_a_slow_model_ends_by_the_deadline_and_its_requests_with_it(
    behaviour: Behaviour, server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    server.behaviour = behaviour
    # Time enough for a busy machine to search and to ask the critic, and none of it for a second attempt.
    answer = await loop_of(llm).answer(QUESTION, deadline_s=4)
    assert answer.seconds < PATIENCE_S
    assert (answer.stop, answer.text, len(answer.evidence)) == ("deadline", "", 4)
    assert "critic" in answer.error
    await no_work_left(server)
    assert len(server.requests) <= 2


@pytest.mark.parametrize("behaviour", [hang, drip])
async def test_the_client_alone_keeps_the_deadline(
    behaviour: Behaviour, server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    server.behaviour = behaviour
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await llm.generate([Message("user", "q")], max_tokens=5, deadline=Deadline.after(0.3))
    assert time.monotonic() - started < PATIENCE_S
    await no_work_left(server)


@pytest.mark.parametrize("behaviour", [hang, drip])
@pytest.mark.parametrize("steps", range(6))
async def test_a_second_cancellation_while_the_first_closes_the_connection_leaves_no_work(
    steps: int, behaviour: Behaviour, server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    server.behaviour = behaviour
    call = asyncio.ensure_future(llm.generate([Message("user", "q")], max_tokens=5, deadline=Deadline()))
    await soon(lambda: server.working > 0)
    await asyncio.sleep(0.1)  # its first bytes are read
    call.cancel()
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()
    await no_work_left(server)


async def test_32_questions_at_a_time_within_8_places(server: OpenAIServer) -> None:
    async def slowly(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        await by_role(critic=verdict(NO), reader=ANSWER)(body, writer)

    server.behaviour = slowly
    llm = OpenAILanguageModel(server.url, model="m", parallel=8)
    answers = {}
    async for outcome in loop_of(llm).answer_many(
        (f"When was pump {number} built?" for number in range(64)), concurrency=32, deadline_s=PATIENCE_S
    ):
        assert outcome.answer is not None, outcome.error
        answers[outcome.place] = outcome.answer
    await llm.close()
    assert sorted(answers) == list(range(64))
    assert all(answer.llm_calls["reader"] == 1 for answer in answers.values())
    assert 1 < server.most <= 8
    await no_work_left(server)


async def test_waiting_for_a_place_counts_against_the_deadline(server: OpenAIServer) -> None:
    server.behaviour = hang
    llm = OpenAILanguageModel(server.url, model="m", parallel=1)
    chat = [Message("user", "q")]
    first = asyncio.ensure_future(llm.generate(chat, max_tokens=5, deadline=Deadline()))
    await soon(lambda: server.working == 1)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no place"):
        await llm.generate(chat, max_tokens=5, deadline=Deadline.after(0.2))
    assert time.monotonic() - started < PATIENCE_S
    assert len(server.requests) == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    # The place of what was cancelled is free again.
    server.behaviour = ANSWER
    assert (await llm.generate(chat, max_tokens=5, deadline=Deadline.after(PATIENCE_S))).text == "In 1901 [1]."
    await llm.close()


async def test_a_cancelled_question_ends_its_requests(server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    server.behaviour = hang
    asking = [asyncio.ensure_future(loop_of(llm).answer(QUESTION)) for _ in range(4)]
    await soon(lambda: server.working == 4)
    asking[0].cancel()
    await asyncio.gather(asking[0], return_exceptions=True)
    await soon(lambda: server.working <= 3)
    assert server.working == 3, "the other questions go on"
    for one in asking:
        one.cancel()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in results)
    await no_work_left(server)


async def test_many_questions_that_are_left_early_end_their_requests(
    server: OpenAIServer, llm: OpenAILanguageModel
) -> None:
    async def first_only(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await (reply("x") if "pump 0" in body["messages"][-1]["content"].lower() else hang)(body, writer)

    server.behaviour = first_only
    questions = (f"Pump {number}?" for number in range(100))
    async with aclosing(loop_of(llm).answer_many(questions, concurrency=6)) as outcomes:
        async for outcome in outcomes:
            assert outcome.question == "Pump 0?"
            break
    await no_work_left(server)
    assert server.most <= 6
    assert next(questions) in ("Pump 6?", "Pump 7?"), "questions are taken only when there is a place"


async def test_a_failed_question_among_many_is_named(server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    outcomes = [one async for one in loop_of(llm).answer_many(["", QUESTION], concurrency=2)]
    failed, answered = sorted(outcomes, key=lambda one: one.place)
    assert (failed.answer, "question" in str(failed.error)) == (None, True)
    assert answered.answer is not None
    with pytest.raises(Exception, match="concurrency"):
        await anext(loop_of(llm).answer_many([QUESTION], concurrency=0))


async def test_a_flood_is_refused_by_its_size(server: OpenAIServer, llm: OpenAILanguageModel) -> None:
    server.behaviour = flood
    with pytest.raises(CriticError, match="more than 4194304 bytes"):
        await llm.generate([Message("user", "q")], max_tokens=5, deadline=Deadline.after(PATIENCE_S))
