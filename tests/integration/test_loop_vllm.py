"""The loop over the real vLLM: many questions at a time, a full queue, cancellation, answers cut short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from patience import PATIENCE_S, soon

from canopy_backend.errors import DeadlineExceeded
from canopy_backend.items import TextItem
from canopy_client import LoopOptions, Orchestrator
from canopy_client.deadline import Deadline
from canopy_client.llm import Message, TritonLanguageModel
from canopy_milvus import Hit

pytestmark = pytest.mark.critic

#: Sequences that the local engine works on at a time.
ENGINE_PLACES = 8
OPTIONS = LoopOptions(compress=False, k=2, max_rounds=2, critic_tokens=24, reader_tokens=6)
CHAT = [Message("user", "Count from one to a thousand, in words, one a line.")]


class Shelf:
    """A store that finds other items for every query."""

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        number = sum(map(ord, query)) % 90
        items = [TextItem(id=f"i{n}", text=f"Pump {n} was built in 19{n}.") for n in range(number, number + k)]
        return [Hit(item=item, score=0.5, modality="text") for item in items]


class Nobody:
    async def compress(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("compress")


@pytest.fixture
async def llm(critic_url: str, shared_settings: Any) -> AsyncIterator[TritonLanguageModel]:
    one = TritonLanguageModel.with_model_folder(critic_url, shared_settings.critic_model)
    yield one
    await one.close()


def loop_of(llm: TritonLanguageModel) -> Orchestrator:
    return Orchestrator(Shelf(), Nobody(), llm, options=OPTIONS)


async def short_answer_s(llm: TritonLanguageModel) -> float:
    started = time.monotonic()
    await llm.generate([Message("user", "Hello.")], max_tokens=2, deadline=Deadline.after(4 * PATIENCE_S))
    return time.monotonic() - started


async def test_32_questions_at_a_time(llm: TritonLanguageModel) -> None:
    """A quarter of them with critic and follow-up: their long prompts are what a small machine takes longest for."""
    loop = loop_of(llm)
    short = LoopOptions(compress=False, k=2, max_rounds=1, reader_tokens=6)
    answers = await asyncio.gather(
        *(
            loop.answer(f"When was pump {number} built?", options=short if number % 4 else OPTIONS, deadline_s=500)
            for number in range(32)
        )
    )
    for number, one in enumerate(answers):
        assert one.question == f"When was pump {number} built?"
        assert one.stop not in ("deadline", "reader_failed"), one.error
        assert one.text
        assert one.llm_calls["reader"] == 1
        assert ("critic" in one.llm_calls) == (number % 4 == 0)
    await soon(lambda: len(asyncio.all_tasks() - {asyncio.current_task()}) <= 2, "tasks are left")


async def test_cancelled_questions_free_the_engine(llm: TritonLanguageModel) -> None:
    """As many long answers as the engine works on at a time: if one went on, the next would wait behind it."""
    usual = await short_answer_s(llm)
    long = LoopOptions(compress=False, k=2, max_rounds=1, reader_tokens=4000)
    # Sampling parameters of the loop have no way to forbid the end of an answer; long counting does not end soon.
    asking = [
        asyncio.ensure_future(loop_of(llm).answer(CHAT[0].content, options=long)) for _ in range(2 * ENGINE_PLACES)
    ]
    await asyncio.sleep(1.5)
    for one in asking:
        one.cancel()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in results) >= ENGINE_PLACES
    # Thousands of tokens for each of them would take minutes.
    assert await short_answer_s(llm) < 30 + 4 * usual


async def test_a_full_client_queue_keeps_the_deadline(critic_url: str, shared_settings: Any) -> None:
    llm = TritonLanguageModel.with_model_folder(critic_url, shared_settings.critic_model, parallel=1)
    first = asyncio.ensure_future(llm.generate(CHAT, max_tokens=3000, deadline=Deadline.after(60)))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    try:
        await llm.generate(CHAT, max_tokens=2, deadline=Deadline.after(0.3))
    except DeadlineExceeded:
        assert time.monotonic() - started < PATIENCE_S
    else:
        assert first.done(), "its place became free only with its end"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await short_answer_s(llm) < PATIENCE_S
    await llm.close()


async def test_a_deadline_in_the_middle_of_an_answer(llm: TritonLanguageModel) -> None:
    options = LoopOptions(compress=False, k=2, critic_tokens=4000)
    answer = await loop_of(llm).answer("Tell everything about pumps.", options=options, deadline_s=2)
    assert answer.seconds < PATIENCE_S
    assert len(answer.evidence) == 2
    assert answer.stop in ("deadline", "critic_failed", "sufficient", "empty_query", "repeated_query")


async def test_a_verdict_cut_by_its_tokens_is_asked_again_and_given_up(llm: TritonLanguageModel) -> None:
    options = LoopOptions(compress=False, k=2, critic_tokens=3, reader_tokens=6)
    answer = await loop_of(llm).answer("When was pump 3 built?", options=options, deadline_s=4 * PATIENCE_S)
    assert (answer.stop, answer.llm_calls) == ("critic_failed", {"critic": 2, "reader": 1})
    assert answer.text
    assert "asked 2 times" in answer.error


async def test_a_prompt_over_the_model_s_window_leaves_the_evidence(llm: TritonLanguageModel) -> None:
    question = "When was pump 3 built? " * 2500
    answer = await loop_of(llm).answer(question, deadline_s=4 * PATIENCE_S)
    assert answer.stop == "reader_failed"
    assert len(answer.evidence) == 2
    assert "max_model_len" in answer.error
