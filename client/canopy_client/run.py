"""The state of one question while the loop works on it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from canopy_backend.errors import CanopyError, DeadlineExceeded
from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_client import identity, telemetry
from canopy_client.answer import Round, Stop
from canopy_client.deadline import Deadline
from canopy_client.options import LoopOptions
from canopy_client.sight import Room, Seen
from canopy_client.telemetry import Span
from canopy_client.verdict import Verdict


class GaveUp(Exception):
    """A stage failed and the question is answered from what there is; ``Run.stop`` and ``Run.error`` say why."""


@dataclass(slots=True)
class Run:
    """State of one question.

    Attributes:
        question: As asked.
        options: Its switches.
        deadline: When nobody waits for the answer any more.
        searching: When searching ends, so that the reader has time.
        started: Begin, on the monotonic clock.
        items: What was retrieved, each once, in order.
        evidence: What was made of them.
        pictures: Those of each item's evidence, by the item's id, where the model sees.
        room: What is left for pictures.
        round_of: The round that found each.
        seen: Their ids.
        asked: Queries so far, without what does not change a search.
        searched: What verdicts named as missing.
        rounds: What happened.
        calls: Calls of the language model by role.
        tables_whole: What was decided of tables.
        stop: Why the loop ended.
        error: What failed, in words.
        fault: The type of what failed last; the log has it instead of the words, which may quote an item.
        id: Name of the question in logs and in the servers' requests.
        span: The question's.
        round_span: The round's.
    """

    question: str
    options: LoopOptions
    deadline: Deadline
    searching: Deadline
    started: float = field(default_factory=time.monotonic)
    items: list[Item] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    pictures: dict[str, list[Seen]] = field(default_factory=dict)
    room: Room | None = None
    round_of: list[int] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    searched: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    tables_whole: bool | None = None
    stop: Stop = "max_rounds"
    error: str = ""
    fault: str = ""
    id: str = field(default_factory=lambda: identity.current() or identity.new())
    span: Span = field(default_factory=Span)
    round_span: Span = field(default_factory=Span)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """The whole question as a span. It is current in no block: the question is a generator, which others drive."""
        self.span = telemetry.begin("question", None, canopy_request_id=self.id)
        try:
            yield
        except BaseException as error:
            self.round_span.fail(error)
            self.span.fail(error)
            raise
        finally:
            self.round_span.end()
            self.span.set(canopy_stop=self.stop, canopy_rounds=len(self.rounds), canopy_items=len(self.items))
            if self.fault:
                self.span.fail(self.fault)
            self.span.end()

    def end_rounds(self) -> None:
        """No round follows."""
        self.round_span.end()

    @contextmanager
    def named(self, stage: str, around: Span) -> Iterator[Span]:
        """A stage under the question's id, as a span inside another."""
        with identity.request_id(self.id), around.active(), telemetry.span(stage) as span:
            yield span

    def begin(self, number: int, query: str) -> Round:
        """A new round with its query."""
        current = Round(number=number, query=query)
        self.round_span.end()
        self.round_span = telemetry.begin("round", self.span, canopy_round=number)
        self.rounds.append(current)
        self.asked.add(_normal(query))
        return current

    def next_query(self, verdict: Verdict) -> str | None:
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

    @contextmanager
    def stage(self, stop: Stop) -> Iterator[None]:
        """A stage whose failure ends the search with ``stop``, or with ``deadline``.

        Raises:
            GaveUp: It failed, and there is something to answer from, or no time for anything else.
            CanopyError: It failed before there was any evidence.
        """
        try:
            yield
        except DeadlineExceeded as error:
            self.failed("deadline", error)
            raise GaveUp from None
        except CanopyError as error:
            if not self.evidence:
                raise
            self.failed(stop, error)
            raise GaveUp from None

    def failed(self, stop: Stop, error: CanopyError) -> None:
        """Note why it ended; an earlier reason is kept in the words."""
        self.stop = stop
        self.fault = type(error).__name__
        told = " ".join(str(error).split()) or type(error).__name__
        self.error = f"{self.error}; {told}" if self.error else told

    def last_answer(self) -> str:
        """What the critic last said the evidence backs; empty for nothing."""
        return next((one.verdict.answer for one in reversed(self.rounds) if one.verdict), "")


@contextmanager
def timed(run: Run, current: Round, stage: str) -> Iterator[None]:
    """Add a stage's seconds to its round, and a span."""
    started = time.monotonic()
    try:
        with run.named(stage, run.round_span):
            yield
    finally:
        current.seconds[stage] = current.seconds.get(stage, 0.0) + time.monotonic() - started


def _normal(query: str) -> str:
    """A query without what does not change a search: case, white space, marks."""
    return re.sub(r"\W+", " ", query).strip().casefold()
