"""The loop: retrieve, compress, judge, search again for what is missing, and answer.

After section 3 of arXiv 2610.00923. Sufficiency is judged against the original question and compression is conditioned
on the query of the round. Every way out has a name (:data:`canopy_client.answer.Stop`), and every round is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from canopy_backend.errors import CriticError, DeadlineExceeded
from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_client import classifier, critic, reader, router
from canopy_client.answer import Answer, HitRecord, Round, Stop
from canopy_client.assembly import Assembler
from canopy_client.deadline import Deadline
from canopy_client.events import Answered, Compressed, Event, Judged, Retrieved, RoundStarted
from canopy_client.jobs import require_text
from canopy_client.llm.base import Completion, LanguageModel, Message
from canopy_client.retrieval import Retriever
from canopy_client.trace import original
from canopy_milvus import Hit

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


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How a question is worked on.

    Attributes:
        k: Items retrieved a round, or a round and corpus where the router runs.
        max_rounds: Most rounds.
        routed: Ask a router which modalities to search.
        trace: Keep every visited node in the evidence, and the items beside it.
        critic_tokens: Most tokens of a verdict.
        reader_tokens: Most tokens of the answer.
    """

    k: int = 10
    max_rounds: int = 3
    routed: bool = False
    trace: bool = False
    critic_tokens: int = critic.MAX_TOKENS
    reader_tokens: int = reader.MAX_TOKENS


class Counted:
    """A language model in one role, whose calls are counted."""

    def __init__(self, llm: LanguageModel, role: str, calls: Counter[str]) -> None:
        self._llm, self._role, self._calls = llm, role, calls

    @property
    def name(self) -> str:
        """The model's name."""
        return self._llm.name

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        deadline: Deadline,
    ) -> Completion:
        """Answer a chat, and count it."""
        self._calls[self._role] += 1
        return await self._llm.generate(messages, max_tokens=max_tokens, schema=schema, deadline=deadline)

    async def close(self) -> None:
        """Nothing: the model belongs to whoever opened it."""


@dataclass(slots=True)
class _Run:
    """State of one question."""

    question: str
    deadline: Deadline
    searching: Deadline
    started: float = field(default_factory=time.monotonic)
    items: list[Item] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    round_of: list[int] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    searched: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    tables_whole: bool | None = None
    stop: Stop = "max_rounds"

    def next_query(self, verdict: critic.Verdict) -> str | None:
        """The query of the next round; ``None``, with ``stop`` set, when there is none."""
        if verdict.sufficient:
            self.stop = "sufficient"
        elif not verdict.query:
            self.stop = "empty_query"
        elif _normal(verdict.query) in self.asked:
            self.stop = "repeated_query"
        else:
            if verdict.missing:
                self.searched.append(verdict.missing)
            return verdict.query
        return None


class Orchestrator:
    """Answers questions.

    Args:
        retriever: Finds items.
        compressor: Makes evidence of them.
        llm: Plays critic, classifier, router and reader.
        options: How.
        assembler: Numbers the evidence and keeps it within the reader's budget.
    """

    def __init__(
        self,
        retriever: Retriever,
        compressor: Compressor,
        llm: LanguageModel,
        *,
        options: LoopOptions | None = None,
        assembler: Assembler | None = None,
    ) -> None:
        self._retriever = retriever
        self._compressor = compressor
        self._llm = llm
        self._options = options or LoopOptions()
        self._assembler = assembler or Assembler()

    async def answer(self, question: str, *, deadline_s: float | None = None) -> Answer:
        """Work on a question to its end.

        Args:
            question: What is asked.
            deadline_s: Seconds for all of it; a quarter is kept for the reader. ``None`` for no bound.

        Raises:
            InvalidRequest: The question is empty.
            RetrievalError: The vector store failed.
            CriticError: The reader failed.
            ServerUnavailable: A server did not answer, after retries.
        """
        async for event in self.events(question, deadline_s=deadline_s):
            if isinstance(event, Answered):
                return event.answer
        raise CriticError("the loop ended without an answer")

    async def events(self, question: str, *, deadline_s: float | None = None) -> AsyncIterator[Event]:
        """The same, step by step; the last event is ``Answered``. Arguments and errors as :meth:`answer`."""
        require_text(question, "question")
        searching_s = None if deadline_s is None else deadline_s * (1 - READER_SHARE)
        run = _Run(question, Deadline.after(deadline_s), Deadline.after(searching_s))
        try:
            async for event in self._rounds(run):
                yield event
        except DeadlineExceeded:
            run.stop = "deadline"
        answer = await self._answer(run)
        logger.info("question answered: stop=%s rounds=%d seconds=%.2f", run.stop, len(run.rounds), answer.seconds)
        yield Answered(answer)

    async def _rounds(self, run: _Run) -> AsyncIterator[Event]:
        query: str | None = run.question
        for number in range(1, self._options.max_rounds + 1):
            assert query is not None
            current = Round(number=number, query=query)
            run.rounds.append(current)
            run.asked.add(_normal(query))
            yield RoundStarted(number, query)
            new = await self._retrieve(run, current)
            yield Retrieved(number, current.hits)
            if not new:
                run.stop = "no_new_item" if run.evidence else "no_items"
                return
            yield Compressed(number, await self._compress(run, current, new))
            if number == self._options.max_rounds:
                return
            try:
                verdict = await self._judge(run, current)
            except CriticError as error:
                logger.warning("round %d: %s", number, error)
                run.stop = "critic_failed"
                return
            yield Judged(number, verdict)
            query = run.next_query(verdict)
            if query is None:
                return

    async def _retrieve(self, run: _Run, current: Round) -> list[Item]:
        """Search, record the hits, and return the items that no earlier round had."""
        corpora: frozenset[str] | None = None
        if self._options.routed:
            with _timed(current, "route"):
                model = Counted(self._llm, "router", run.calls)
                corpora = await _within(router.route(model, current.query, run.searching), run.searching, "router")
            current.corpora = sorted(corpora)
        with _timed(current, "retrieve"):
            search = self._retriever.search(current.query, self._options.k, modalities=corpora, deadline=run.searching)
            hits: list[Hit] = await _within(search, run.searching, "retrieval")
        new: list[Item] = []
        for hit in hits:
            fresh = hit.item.id not in run.seen
            if fresh:
                run.seen.add(hit.item.id)
                new.append(hit.item)
            record = HitRecord(
                item_id=hit.item.id, modality=hit.item.modality, title=hit.item.title, score=hit.score, new=fresh
            )
            current.hits.append(record)
        return new

    async def _compress(self, run: _Run, current: Round, items: list[Item]) -> list[Evidence]:
        if run.tables_whole is None and any(item.modality == "table" for item in items):
            with _timed(current, "classify"):
                model = Counted(self._llm, "classifier", run.calls)
                label = classifier.classify(model, run.question, run.searching)
                run.tables_whole = await _within(label, run.searching, "classifier") == "aggregate"
        with _timed(current, "compress"):
            call = self._compressor.compress(
                current.query,
                items,
                keep_tables_whole=bool(run.tables_whole),
                trace=self._options.trace,
                deadline_s=run.searching.timeout_s("compress"),
            )
            evidence = await _within(call, run.searching, "compress")
        run.items.extend(items)
        run.evidence.extend(evidence)
        run.round_of.extend([current.number] * len(evidence))
        return evidence

    async def _judge(self, run: _Run, current: Round) -> critic.Verdict:
        with _timed(current, "critic"):
            call = critic.judge(
                Counted(self._llm, "critic", run.calls),
                run.question,
                self._assembler.assemble(run.evidence).text,
                run.searched,
                run.searching,
                max_tokens=self._options.critic_tokens,
            )
            current.verdict = await _within(call, run.searching, "critic")
        return current.verdict

    async def _answer(self, run: _Run) -> Answer:
        prompt = self._assembler.assemble(run.evidence)
        started = time.monotonic()
        model = Counted(self._llm, "reader", run.calls)
        call = reader.read(model, run.question, prompt.text, run.deadline, max_tokens=self._options.reader_tokens)
        try:
            text = (await _within(call, run.deadline, "reader")).text
        except DeadlineExceeded:
            run.stop = "deadline"
            text = next((one.verdict.answer for one in reversed(run.rounds) if one.verdict), "")
        now = time.monotonic()
        cited = prompt.cited(run.evidence, run.round_of, text)
        if self._options.trace:
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
        )


@contextmanager
def _timed(current: Round, stage: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        current.seconds[stage] = current.seconds.get(stage, 0.0) + time.monotonic() - started


async def _within(call: Awaitable[T], deadline: Deadline, what: str) -> T:
    """Await a stage, but not past the deadline, whether or not the stage itself looks at it."""
    left = deadline.remaining_s()
    try:
        async with asyncio.timeout(None if left == float("inf") else left):
            return await call
    except TimeoutError:
        raise DeadlineExceeded(f"{what}: the deadline passed") from None


def _normal(query: str) -> str:
    """A query without what does not change a search: case, white space, marks."""
    return re.sub(r"\W+", " ", query).strip().casefold()
