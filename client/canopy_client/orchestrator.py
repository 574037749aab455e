"""The loop: retrieve, compress, judge, search again for what is missing, and answer.

After section 3 of arXiv 2610.00923. Sufficiency is judged against the original question and compression is conditioned
on the query of the round. Every way out has a name (:data:`canopy_client.answer.Stop`), and every round is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from canopy_backend.errors import CanopyError, CriticError, DeadlineExceeded
from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_client import classifier, reader, router
from canopy_client.answer import Answer, HitRecord, Round
from canopy_client.assembly import Assembler, Prompt
from canopy_client.critic import Critic, LanguageModelCritic
from canopy_client.deadline import Deadline
from canopy_client.events import Answered, Compressed, Event, Judged, Retrieved, RoundStarted
from canopy_client.jobs import require_text
from canopy_client.llm.base import LanguageModel
from canopy_client.llm.counting import Counted, counting
from canopy_client.many import Outcome, bounded
from canopy_client.options import LoopOptions
from canopy_client.retrieval import Retriever
from canopy_client.run import GaveUp, Run, timed
from canopy_client.sight import Room, Sight, look
from canopy_client.trace import original
from canopy_client.verdict import Verdict
from canopy_client.whole import whole
from canopy_milvus import Hit

__all__ = ["READER_SHARE", "Compressor", "LoopOptions", "Orchestrator"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Share of a question's time that is kept for the reader.
READER_SHARE: Final = 0.25


class Compressor(Protocol):
    """What the orchestrator needs of the evidence server; :class:`canopy_client.AsyncCanopyClient` is one."""

    async def compress(
        self,
        query: str,
        items: Sequence[Item],
        *,
        keep_tables_whole: bool = False,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> list[Evidence]:
        """One evidence an item, in order."""
        ...


class Orchestrator:
    """Answers questions; holds nothing of one, so one orchestrator works on many at a time.

    Args:
        retriever: Finds items.
        compressor: Makes evidence of them.
        llm: Plays classifier, router and reader, and the critic where none is given.
        critic: Judges the evidence; ``None`` for the language model, within the budget of the request.
        options: The switches of requests that bring none.
        assembler: Numbers the evidence and keeps it within the reader's budget.
        sight: What the language model is shown of images and clips; ``None`` where it does not see, and reads their
            captions and transcripts alone. A critic that is given has eyes of its own or none.
    """

    def __init__(
        self,
        retriever: Retriever,
        compressor: Compressor,
        llm: LanguageModel,
        *,
        critic: Critic | None = None,
        options: LoopOptions | None = None,
        assembler: Assembler | None = None,
        sight: Sight | None = None,
    ) -> None:
        self._retriever = retriever
        self._compressor = compressor
        self._llm = llm
        self._critic = critic
        self._classifier, self._router, self._reader = (
            Counted(llm, role) for role in ("classifier", "router", "reader")
        )
        self._options = options or LoopOptions()
        self._assembler = assembler or Assembler()
        self._sight = sight

    async def answer(
        self, question: str, *, options: LoopOptions | None = None, deadline_s: float | None = None
    ) -> Answer:
        """Work on a question to its end.

        What fails once there is evidence does not raise: the answer carries the evidence, ``stop`` and ``error``.

        Args:
            question: What is asked.
            options: The switches of this question; the orchestrator's where not given.
            deadline_s: Seconds for all of it; a quarter is kept for the reader. ``None`` for no bound.

        Raises:
            InvalidRequest: The question is empty.
            RetrievalError: The vector store failed in the first round.
            LimitExceeded: The question is longer than the encoder takes.
            CriticError: Nothing was found, and the reader failed too.
            ServerUnavailable: A server did not answer in the first round, after retries.
        """
        async for event in self.events(question, options=options, deadline_s=deadline_s):
            if isinstance(event, Answered):
                return event.answer
        raise CriticError("the loop ended without an answer")

    async def events(
        self, question: str, *, options: LoopOptions | None = None, deadline_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """The same, step by step; the last event is ``Answered``. Arguments and errors as :meth:`answer`."""
        require_text(question, "question")
        searching_s = None if deadline_s is None else deadline_s * (1 - READER_SHARE)
        run = Run(question, options or self._options, Deadline.after(deadline_s), Deadline.after(searching_s))
        run.room = None if self._sight is None else Room.of(self._sight)
        with run.recorded():
            try:
                async for event in self._rounds(run):
                    yield event
            except GaveUp:
                _warn(run)
            run.end_rounds()
            answer = await self._answer(run)
        told = {"request_id": run.id, "stop": run.stop, "round": len(run.rounds), "seconds": round(answer.seconds, 3)}
        logger.info("question answered", extra=told)
        yield Answered(answer)

    def answer_many(
        self,
        questions: Iterable[str],
        *,
        concurrency: int = 8,
        options: LoopOptions | None = None,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[Outcome, None]:
        """Work on many questions, a bounded number at a time; yields each when it is done, not in order.

        Close the generator (``contextlib.aclosing``) to cancel what is in flight.

        Args:
            questions: Taken one by one, as places become free.
            concurrency: Most questions in flight.
            options: The switches of all of them.
            deadline_s: Seconds for each, from when it begins.

        Raises:
            InvalidRequest: ``concurrency`` is less than 1.
        """

        async def one(question: str) -> Answer:
            return await self.answer(question, options=options, deadline_s=deadline_s)

        return bounded(one, questions, concurrency)

    async def _rounds(self, run: Run) -> AsyncGenerator[Event, None]:
        query: str | None = run.question
        for number in range(1, run.options.max_rounds + 1):
            assert query is not None
            current = run.begin(number, query)
            yield RoundStarted(number, query)
            with run.stage("retrieval_failed"):
                new = await self._retrieve(run, current)
            yield Retrieved(number, current.hits)
            if not new:
                run.stop = "no_new_item" if run.evidence else "no_items"
                return
            with run.stage("compress_failed"):
                evidence = await self._evidence(run, current, new)
            yield Compressed(number, evidence)
            if number == run.options.max_rounds:
                return
            with run.stage("critic_failed"):
                verdict = await self._judge(run, current)
            yield Judged(number, verdict)
            query = run.next_query(verdict)
            if query is None:
                return

    async def _retrieve(self, run: Run, current: Round) -> list[Hit]:
        """Search, record the hits, and return those that no earlier round had."""
        corpora: frozenset[str] | None = None
        if run.options.routed:
            with timed(run, current, "route"), counting(run.calls):
                corpora = await _within(
                    router.route(self._router, current.query, run.searching), run.searching, "router"
                )
            current.corpora = sorted(corpora)
        with timed(run, current, "retrieve"):
            k = run.options.items_of(current.number)
            search = self._retriever.search(current.query, k, modalities=corpora, deadline=run.searching)
            hits: list[Hit] = await _within(search, run.searching, "retrieval")
        new: list[Hit] = []
        for hit in hits:
            fresh = hit.item.id not in run.seen
            if fresh:
                run.seen.add(hit.item.id)
                new.append(hit)
            record = HitRecord(
                item_id=hit.item.id, modality=hit.item.modality, title=hit.item.title, score=hit.score, new=fresh
            )
            current.hits.append(record)
        return new

    async def _evidence(self, run: Run, current: Round, hits: list[Hit]) -> list[Evidence]:
        """Evidence of new items, compressed or whole."""
        items = [hit.item for hit in hits]
        if run.options.compress:
            evidence = await self._compress(run, current, items)
        else:
            with timed(run, current, "compress"):
                count, trace = self._assembler.count, run.options.trace
                evidence = [whole(hit.item, hit.score, count, trace=trace) for hit in hits]
        run.items.extend(items)
        run.evidence.extend(evidence)
        run.round_of.extend([current.number] * len(evidence))
        await self._look(run, current, items, evidence)
        return evidence

    async def _look(self, run: Run, current: Round, items: list[Item], evidence: list[Evidence]) -> None:
        """Prepare the pictures of new evidence, once for all prompts of the question."""
        if self._sight is None or run.room is None:
            return
        with timed(run, current, "look"):
            for item, one in zip(items, evidence, strict=True):
                run.pictures[item.id] = await look(item, one, self._sight, run.room, run.searching)

    def _assembler_of(self, run: Run) -> Assembler:
        """Evidence within the request's budget, with its pictures."""
        return self._assembler.within(run.options.budget_tokens).showing(run.pictures)

    async def _compress(self, run: Run, current: Round, items: list[Item]) -> list[Evidence]:
        if run.tables_whole is None and any(item.modality == "table" for item in items):
            run.tables_whole = await self._tables_whole(run, current)
        with timed(run, current, "compress"):
            call = self._compressor.compress(
                current.query,
                items,
                keep_tables_whole=bool(run.tables_whole),
                trace=run.options.trace,
                deadline_s=run.searching.timeout_s("compress"),
            )
            return await _within(call, run.searching, "compress")

    async def _tables_whole(self, run: Run, current: Round) -> bool:
        if run.options.tables != "classify":
            return run.options.tables == "whole"
        with timed(run, current, "classify"), counting(run.calls):
            label = classifier.classify(self._classifier, run.question, run.searching)
            return await _within(label, run.searching, "classifier") == "aggregate"

    async def _judge(self, run: Run, current: Round) -> Verdict:
        judge = self._critic or LanguageModelCritic(self._llm, self._assembler_of(run), run.options.critic_tokens)
        with timed(run, current, "critic"), counting(run.calls):
            call = judge.judge(run.question, tuple(run.evidence), tuple(run.searched), run.searching)
            current.verdict = await _within(call, run.searching, "critic")
        return current.verdict

    async def _answer(self, run: Run) -> Answer:
        prompt = self._assembler_of(run).assemble(run.evidence)
        started = time.monotonic()
        text = await self._read(run, prompt)
        now = time.monotonic()
        cited = prompt.cited(run.evidence, run.round_of, text)
        if run.options.trace:
            for one, item in zip(cited, run.items, strict=True):
                one.original = original(item, one.evidence)
        return Answer(
            question=run.question,
            text=text,
            stop=run.stop,
            evidence=cited,
            rounds=run.rounds,
            llm_calls=dict(run.calls),
            tables_whole=run.tables_whole,
            tokens_before=sum(one.tokens_in for one in run.evidence),
            tokens_after=sum(one.tokens_kept for one in run.evidence),
            tokens_read=prompt.tokens,
            seconds=now - run.started,
            reader_seconds=now - started,
            error=run.error,
            options=run.options,
            request_id=run.id,
        )

    async def _read(self, run: Run, prompt: Prompt) -> str:
        """The reader's answer; where it fails and there is evidence, the critic's last."""
        call = reader.read(
            self._reader,
            run.question,
            prompt.text,
            run.deadline,
            pictures=prompt.pictures,
            max_tokens=run.options.reader_tokens,
        )
        try:
            with run.named("reader", run.span), counting(run.calls):
                return (await _within(call, run.deadline, "reader")).text
        except DeadlineExceeded as error:
            run.failed("deadline", error)
        except CanopyError as error:
            if not run.evidence:
                raise
            run.failed("reader_failed", error)
        _warn(run)
        return run.last_answer()


def _warn(run: Run) -> None:
    """Log why the search or the reader ended early: by names, since the words may quote an item."""
    told = {"request_id": run.id, "stop": run.stop, "round": len(run.rounds), "error": run.fault}
    logger.warning("round %d ended by %s: %s", len(run.rounds), run.stop, run.fault, extra=told)


async def _within(call: Awaitable[T], deadline: Deadline, what: str) -> T:
    """Await a stage, but not past the deadline, whether or not the stage itself looks at it."""
    left = deadline.remaining_s()
    try:
        async with asyncio.timeout(None if left == float("inf") else left):
            return await call
    except TimeoutError:
        raise DeadlineExceeded(f"{what}: the deadline passed") from None
