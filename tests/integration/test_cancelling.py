"""Work that is given up at any moment, and given up again while it cleans up, leaves nothing behind.

Two deadlines that pass in one moment cancel twice; so does a user who leaves while a deadline passes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from inference_server import InferenceServer
from milvus_data import DIMENSION, REVISION, indexed, passages
from openai_server import Behaviour, OpenAIServer, reply
from patience import soon
from test_loop_llm import QUESTION, drip, hang, loop_of

from canopy_client import AsyncCanopyClient
from canopy_client import fetch as fetching
from canopy_client.deadline import Deadline
from canopy_client.llm import Message, OpenAILanguageModel, TritonLanguageModel
from canopy_client.retrieval import MilvusRetriever
from canopy_milvus import AsyncCorpus, Corpus
from canopy_milvus import connection as milvus_connection

CHAT = [Message("user", "q")]
#: Steps of the event loop before the first cancellation, and between the two.
BEFORE = range(21)
BETWEEN = (0, 1, 2, 3)
PLACES = 3


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def twice_cancelled(work: Coroutine[Any, Any, Any], before: Awaitable[Any], between: int) -> None:
    """Begin, wait, cancel, wait some steps, cancel again; both reach the work, or it was over before."""
    task = asyncio.ensure_future(work)
    await before
    task.cancel()
    await steps(between)
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


async def at_every_step(begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Cancel twice after each number of steps."""
    for before in BEFORE:
        for between in BETWEEN:
            await twice_cancelled(begin(), steps(before), between)


async def in_the_middle(
    begin: Callable[[], Coroutine[Any, Any, Any]], server: OpenAIServer | InferenceServer, requests: int = 1
) -> None:
    """Cancel twice when the server is at work on so many requests."""
    await soon(lambda: not server.working, "the server is still at work")
    for between in range(12):
        await twice_cancelled(begin(), soon(lambda: server.working == requests, "the server never began"), between)
        await soon(lambda: not server.working, "the server is still at work")


def tasks() -> set[asyncio.Task[Any]]:
    """What is under way on the client's side, the test itself aside."""
    running = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in running if not task.get_coro().__qualname__.startswith(("AioServer", "OpenAIServer", "_"))}


async def no_task_left() -> None:
    await soon(lambda: not tasks(), "a task is left")


@pytest.fixture
async def http() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer(hang) as server:
        yield server


@pytest.fixture
async def triton() -> AsyncIterator[InferenceServer]:
    async with InferenceServer() as server:
        yield server


@pytest.mark.parametrize("behaviour", [hang, drip])
async def test_requests_to_a_language_model_over_http(behaviour: Behaviour, http: OpenAIServer) -> None:
    http.behaviour = behaviour
    llm = OpenAILanguageModel(http.url, model="m", parallel=PLACES)

    async def ask() -> None:
        await llm.generate(CHAT, max_tokens=5, deadline=Deadline())

    await at_every_step(ask)
    await in_the_middle(ask, http)
    # All places are free, and the connections can be used.
    http.behaviour = reply("yes")
    answers = await asyncio.gather(*(llm.generate(CHAT, max_tokens=5, deadline=Deadline()) for _ in range(PLACES)))
    assert [one.text for one in answers] == ["yes"] * PLACES
    await llm.close()
    await soon(lambda: not http.connections, "a connection is open")


@pytest.mark.parametrize("between", range(4))
async def test_a_language_model_is_closed_while_a_request_is_given_up(between: int, http: OpenAIServer) -> None:
    llm = OpenAILanguageModel(http.url, model="m")
    asking = asyncio.ensure_future(llm.generate(CHAT, max_tokens=5, deadline=Deadline()))
    await soon(lambda: http.working > 0)
    asking.cancel()
    asking.cancel()
    await steps(between)
    await llm.close()
    await soon(lambda: not http.connections, "a connection is open")
    await asyncio.wait((asking,))


async def test_requests_to_a_language_model_behind_triton(triton: InferenceServer) -> None:
    llm = TritonLanguageModel(triton.url, parallel=PLACES)

    async def ask() -> None:
        await llm.generate(CHAT, max_tokens=5, schema={"type": "object"}, deadline=Deadline())

    await at_every_step(ask)
    await in_the_middle(ask, triton)
    triton.open.set()
    answers = await asyncio.gather(*(llm.generate(CHAT, max_tokens=5, deadline=Deadline()) for _ in range(PLACES)))
    assert [one.text for one in answers] == ["a"] * PLACES
    await llm.close()
    await no_task_left()


async def test_requests_to_the_evidence_server(triton: InferenceServer) -> None:
    """Five items in three requests, of which some are under way and some wait."""
    items = [{"id": f"{n}", "modality": "text", "text": "The lid is heavy."} for n in range(5)]
    async with AsyncCanopyClient(triton.url, deadline_s=None) as client:

        async def compress() -> None:
            await client.compress("How heavy?", items)

        await at_every_step(compress)
        await in_the_middle(compress, triton, 3)
    await no_task_left()


async def test_many_questions(http: OpenAIServer) -> None:
    llm = OpenAILanguageModel(http.url, model="m", parallel=PLACES)

    async def ask() -> None:
        async with aclosing(loop_of(llm).answer_many([QUESTION] * 6, concurrency=4)) as outcomes:
            async for _ in outcomes:
                pass

    await at_every_step(ask)
    await in_the_middle(ask, http, PLACES)
    await llm.close()
    await soon(lambda: not http.connections, "a connection is open")
    await no_task_left()


async def test_pictures_behind_urls(http: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "is_public", lambda _: True)
    rules = fetching.FetchRules(frozenset({f"127.0.0.1:{http.port}"}), allow_http=True, timeout_s=600)

    async def get() -> None:
        await fetching.fetch(f"http://127.0.0.1:{http.port}/p.png", fetching.IMAGE_TYPES, rules)

    await at_every_step(get)
    await in_the_middle(get, http)
    await soon(lambda: not http.connections, "a connection is open")


def is_open(folder: Path) -> bool:
    return str(folder) in milvus_connection._lite_users


@pytest.mark.parametrize("after_s", [None, 0.0, 0.02, 0.3, 1.0])
async def test_a_corpus_that_is_opened_for_nobody_is_closed(after_s: float | None, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    options = {"revision": REVISION, "dimension": DIMENSION, "modalities": ["text"], "create": True}
    for between in (0, 2):
        before = steps(between) if after_s is None else asyncio.sleep(after_s)
        await twice_cancelled(_opened(folder, options), before, between)
    await soon(lambda: not any(one.name.startswith("corpus-open") for one in threading.enumerate()))
    await soon(lambda: not is_open(folder), "the folder is still open")
    async with await AsyncCorpus.open(str(folder), **options) as corpus:
        assert await corpus.count() == 0
    assert not is_open(folder)


async def _opened(folder: Path, options: dict[str, Any]) -> None:
    corpus = await AsyncCorpus.open(str(folder), **options)
    try:
        await asyncio.sleep(60)
    finally:
        await corpus.close()


@pytest.mark.parametrize("between", [1, 2, 3, 5])
async def test_a_corpus_whose_closing_is_given_up_closes(between: int, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    options = {"revision": REVISION, "dimension": DIMENSION, "modalities": ["text"], "create": True}
    corpus = await AsyncCorpus.open(str(folder), **options)
    # More searches than it has threads: the closing waits behind them.
    query = indexed(passages(1))[0].embedding
    searches = [asyncio.ensure_future(corpus.search(query, 1)) for _ in range(20)]
    await steps(2)
    await twice_cancelled(corpus.close(), steps(between), between)  # once it has begun
    for one in searches:
        one.cancel()
    await asyncio.gather(*searches, return_exceptions=True)
    await soon(lambda: not is_open(folder), "the folder is still open")


async def test_searches_that_are_given_up(tmp_path: Path) -> None:
    rows = indexed(passages(3))
    with Corpus.open(
        str(tmp_path / "corpus"), revision=REVISION, dimension=DIMENSION, modalities=["text"], create=True
    ) as corpus:
        corpus.upsert(rows)
        shared = AsyncCorpus(corpus)

        async def embed(_: Any) -> Any:
            return [rows[1].embedding]

        retriever = MilvusRetriever(shared, embed)

        async def search() -> None:
            await retriever.search("q", 2, modalities=frozenset({"text", "table"}), deadline=Deadline())

        await at_every_step(search)
        await no_task_left()
        hits = await retriever.search("q", 1, modalities=frozenset({"text"}), deadline=Deadline.after(60))
        assert [hit.item.id for hit in hits] == ["p1"]
