"""What one arm did with one question: numbers alone, no text of any item."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from canopy_client.answer import Answer
from canopy_client.assembly import Assembler
from canopy_training.data import Question
from canopy_training.loop.answers import Marks, mark
from canopy_training.loop.gold import Found, GoldItem, found


class RoundState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a question stood after a round.

    Attributes:
        hits: Items that the round found.
        new: Those of them that no earlier round had.
        found: What the evidence of all rounds so far holds of the gold.
        tokens: Reader tokens of that evidence, as a prompt would hold it.
    """

    hits: int
    new: int
    found: Found
    tokens: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One question under one arm.

    Attributes:
        question: Its id.
        dataset: Its data set.
        weak: Whether its gold comes from the answers alone.
        gold_items: Gold items that there are.
        gold_fragments: Gold fragments that there are.
        rounds: One a round; empty where the question failed.
        stop: Why the loop ended; empty where the question failed.
        error: What went wrong, also where there is an answer all the same; else empty.
        marks: Of the reader's answer; ``None`` where nobody read.
        calls: Calls of the language model by role, the reader's only where it was asked.
        seconds: By stage, and ``total``; ``overhead`` is what the total has beside calls of the language model
            (or of the critic in its place), retrieval and compression, and ``processor`` is the processor's share
            of it, without waiting for other programs.
        queries: What was searched in later rounds.
        text: The reader's answer.
    """

    question: str
    dataset: str
    weak: bool
    gold_items: int
    gold_fragments: int
    rounds: list[RoundState] = []
    stop: str = ""
    error: str = ""
    marks: Marks | None = None
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    queries: list[str] = []
    text: str = ""

    def after(self, number: int) -> RoundState:
        """The state after round ``number``, from 1; a question that ended before stays as it was."""
        return self.rounds[min(number, len(self.rounds)) - 1]


def measured(
    question: Question,
    gold: Sequence[GoldItem],
    answer: Answer,
    assembler: Assembler,
    *,
    read: bool,
    overhead: dict[str, float],
) -> Outcome:
    """Read an outcome off an answer.

    Args:
        question: The question.
        gold: Its gold items.
        answer: What the loop gave.
        assembler: The one that the loop used.
        read: Whether a reader was asked.
        overhead: ``overhead`` and ``processor`` of :attr:`Outcome.seconds`.
    """
    if not answer.rounds:
        return blank(question, gold, error=answer.error)
    seconds: dict[str, float] = {}
    for one in answer.rounds:
        for stage, spent in one.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    seconds |= {"total": answer.seconds, **overhead}
    if read:
        seconds["reader"] = answer.reader_seconds
    return Outcome(
        question=question.id,
        dataset=question.dataset,
        weak=not question.gold,
        gold_items=len(gold),
        gold_fragments=_fragments(gold),
        rounds=_states(gold, answer, assembler),
        stop=answer.stop,
        error=answer.error,
        marks=mark(answer.text, question.answers) if read else None,
        calls={role: n for role, n in answer.llm_calls.items() if read or role != "reader"},
        seconds=seconds,
        queries=[one.query for one in answer.rounds[1:]],
        text=answer.text if read else "",
    )


def blank(question: Question, gold: Sequence[GoldItem], *, error: str) -> Outcome:
    """The outcome of a question that failed."""
    return Outcome(
        question=question.id,
        dataset=question.dataset,
        weak=not question.gold,
        gold_items=len(gold),
        gold_fragments=_fragments(gold),
        error=error or "no round was begun",
    )


def _fragments(gold: Sequence[GoldItem]) -> int:
    return sum(int(one.fragments.sum()) for one in gold)


def _states(gold: Sequence[GoldItem], answer: Answer, assembler: Assembler) -> list[RoundState]:
    """One a round. Evidence over the budget goes from the end, so what a round was shown stays shown."""
    states = []
    for one in answer.rounds:
        evidence = [cited.evidence for cited in answer.evidence if cited.round <= one.number]
        states.append(
            RoundState(
                hits=len(one.hits),
                new=sum(hit.new for hit in one.hits),
                found=found(gold, answer.evidence, one.number),
                tokens=assembler.assemble(evidence).tokens,
            )
        )
    return states
