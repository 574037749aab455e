"""Many questions at a time, a bounded number in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from canopy_backend.errors import CanopyError, InvalidRequest
from canopy_client.answer import Answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one of many questions.

    Attributes:
        place: Its place among the questions, from 0.
        question: As asked.
        answer: Its answer; ``None`` when it failed.
        error: Why it failed; ``None`` when it did not.
    """

    place: int
    question: str
    answer: Answer | None = None
    error: CanopyError | None = None


async def bounded(
    answer: Callable[[str], Awaitable[Answer]], questions: Iterable[str], concurrency: int
) -> AsyncGenerator[Outcome, None]:
    """Answer questions, at most ``concurrency`` at a time, and yield each when it is done.

    A question is taken when there is a place for it, and a place becomes free when its outcome was taken, so a slow
    consumer slows the work. Ending the generator cancels what is in flight and waits for that.

    Raises:
        InvalidRequest: ``concurrency`` is less than 1.
    """
    if concurrency < 1:
        raise InvalidRequest(f"concurrency: {concurrency} is not more than 0")

    async def outcome(place: int, question: str) -> Outcome:
        try:
            return Outcome(place, question, answer=await answer(question))
        except CanopyError as error:
            return Outcome(place, question, error=error)

    waiting = enumerate(questions)
    running: set[asyncio.Task[Outcome]] = set()
    done: set[asyncio.Task[Outcome]] = set()
    try:
        while True:
            while len(running) < concurrency and (following := next(waiting, None)) is not None:
                running.add(asyncio.create_task(outcome(*following)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *done, return_exceptions=True)
