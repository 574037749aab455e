"""The critic: is the evidence enough, and if not, what to search for next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from canopy_backend.errors import CriticError
from canopy_backend.evidence import Evidence
from canopy_client import parsing, prompts
from canopy_client.assembly import Assembler
from canopy_client.deadline import Deadline
from canopy_client.llm.base import LanguageModel, Placed
from canopy_client.llm.counting import Counted
from canopy_client.verdict import MAX_TOKENS, Verdict

__all__ = ["FIELDS", "MAX_TOKENS", "Critic", "LanguageModelCritic", "Verdict", "judge", "parse_verdict"]

FIELDS: Final = ("rationale", "answer", "sufficient", "missing", "query")

_YES: Final = ("yes", "true", "sufficient")
_NO: Final = ("no", "false", "not", "insufficient", "none")
_NOTHING: Final = frozenset({"", "none", "n/a", "null", "nothing", "-"})


class Critic(Protocol):
    """Judges evidence after each round but the last."""

    async def judge(
        self, question: str, evidence: Sequence[Evidence], searched: Sequence[str], deadline: Deadline
    ) -> Verdict:
        """Judge all evidence so far against the original question.

        Args:
            question: The original question, also in follow-up rounds.
            evidence: In retrieval order, all rounds.
            searched: What earlier verdicts named as missing, in order.
            deadline: When the caller stops waiting.

        Raises:
            CanopyError: There is no verdict; the loop then answers from what it has.
        """
        ...


class LanguageModelCritic:
    """A language model as the critic. It holds nothing of a question, so one serves many at a time.

    Args:
        llm: The model.
        assembler: Numbers the evidence and keeps it within a budget.
        max_tokens: Most tokens of a verdict.
    """

    def __init__(self, llm: LanguageModel, assembler: Assembler | None = None, max_tokens: int = MAX_TOKENS) -> None:
        self._llm = Counted(llm, "critic")
        self._assembler = assembler or Assembler()
        self._max_tokens = max_tokens

    async def judge(
        self, question: str, evidence: Sequence[Evidence], searched: Sequence[str], deadline: Deadline
    ) -> Verdict:
        """See :class:`Critic`; the errors are those of :func:`judge`."""
        prompt = self._assembler.assemble(evidence)
        return await judge(
            self._llm,
            question,
            prompt.text,
            searched,
            deadline,
            pictures=prompt.pictures,
            max_tokens=self._max_tokens,
        )


def parse_verdict(text: str) -> Verdict | None:
    """The verdict in an answer; ``None`` when it does not say whether the evidence is sufficient."""
    found = parsing.fields(text, FIELDS)
    word = parsing.first_word_of(found.get("sufficient", ""), (*_YES, *_NO))
    if word is None:
        return None
    sufficient = word in _YES
    rationale, answer, missing, query = (_meant(found.get(name, "")) for name in FIELDS if name != "sufficient")
    if sufficient:
        missing = query = ""
    # "no" is an answer to a question, and never a fact or a search text.
    missing, query = ("" if text.lower().strip(".") == "no" else text for text in (missing, query))
    return Verdict(rationale=rationale, answer=answer, sufficient=sufficient, missing=missing, query=query)


async def judge(
    llm: LanguageModel,
    question: str,
    evidence: str,
    searched: Sequence[str],
    deadline: Deadline,
    *,
    pictures: Sequence[Placed] = (),
    max_tokens: int = MAX_TOKENS,
) -> Verdict:
    """Judge evidence against the original question.

    A malformed answer is asked for once more, in plain lines and without a schema, since a model or server that
    cannot follow the schema may still follow the words.

    Args:
        llm: The model.
        question: The original question, also in follow-up rounds.
        evidence: Numbered evidence.
        searched: Facts that earlier rounds asked for.
        deadline: When the caller stops waiting.
        pictures: Pictures of the evidence, by their places in its text, for a model that sees.
        max_tokens: Most tokens of the answer.

    Raises:
        CriticError: No usable answer in two attempts.
        ServerUnavailable: No server answered.
        DeadlineExceeded: The deadline passed.
    """
    first = prompts.critic_messages(question, evidence, searched, pictures)
    attempts = ((first, prompts.CRITIC_SCHEMA), (prompts.critic_again(first), None))
    problem = "no verdict in the answer"
    for messages, schema in attempts:
        try:
            completion = await llm.generate(messages, max_tokens=max_tokens, schema=schema, deadline=deadline)
        except CriticError as error:
            problem = str(error)
            continue
        verdict = parse_verdict(completion.text)
        if verdict is not None:
            return verdict
        problem = "no verdict in the answer"
    raise CriticError(f"critic: asked {len(attempts)} times: {problem}")


def _meant(text: str) -> str:
    return "" if text.lower().strip(".") in _NOTHING else text
