"""The critic: is the evidence enough, and if not, what to search for next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from canopy_backend.errors import CriticError
from canopy_client import parsing, prompts
from canopy_client.deadline import Deadline
from canopy_client.llm.base import LanguageModel

FIELDS: Final = ("rationale", "answer", "sufficient", "missing", "query")
#: Most tokens of a verdict: five lines.
MAX_TOKENS: Final = 400

_YES: Final = ("yes", "true", "sufficient")
_NO: Final = ("no", "false", "not", "insufficient", "none")
_NOTHING: Final = frozenset({"", "none", "n/a", "null", "nothing", "-"})


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the critic said of a round.

    Attributes:
        rationale: Progress made and the hole that is left.
        answer: What the evidence backs; empty when nothing.
        sufficient: Whether the evidence is enough.
        missing: The one fact still needed; empty when sufficient.
        query: Retrieval text for that fact; empty when sufficient.
    """

    rationale: str = ""
    answer: str = ""
    sufficient: bool
    missing: str = ""
    query: str = ""


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
        max_tokens: Most tokens of the answer.

    Raises:
        CriticError: No usable answer in two attempts.
        ServerUnavailable: No server answered.
        DeadlineExceeded: The deadline passed.
    """
    first = prompts.critic_messages(question, evidence, searched)
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
