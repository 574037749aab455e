"""The reader: the final answer, a call of its own even where the critic already named one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from canopy_backend.errors import CriticError
from canopy_client import prompts
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Completion, LanguageModel, Placed

MAX_TOKENS: Final = 160


async def read(
    llm: LanguageModel,
    question: str,
    evidence: str,
    deadline: Deadline,
    *,
    pictures: Sequence[Placed] = (),
    max_tokens: int = MAX_TOKENS,
) -> Completion:
    """Answer a question from numbered evidence, which may be empty, and its pictures, for a model that sees.

    Raises:
        CriticError: The model failed, or said nothing.
        ServerUnavailable: No server answered.
        DeadlineExceeded: The deadline passed.
    """
    messages = prompts.reader_messages(question, evidence, pictures)
    completion = await llm.generate(messages, max_tokens=max_tokens, deadline=deadline)
    text = completion.text.strip()
    if not text:
        raise CriticError(f"reader {llm.name}: an empty answer")
    return replace(completion, text=text)
