"""The reader: the final answer, a call of its own even where the critic already named one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from canopy_backend.errors import CriticError
from canopy_client import prompts
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Completion, LanguageModel

MAX_TOKENS: Final = 160


async def read(
    llm: LanguageModel, question: str, evidence: str, deadline: Deadline, *, max_tokens: int = MAX_TOKENS
) -> Completion:
    """Answer a question from numbered evidence, which may be empty.

    Raises:
        CriticError: The model failed, or said nothing.
        ServerUnavailable: No server answered.
        DeadlineExceeded: The deadline passed.
    """
    messages = prompts.reader_messages(question, evidence)
    completion = await llm.generate(messages, max_tokens=max_tokens, deadline=deadline)
    text = completion.text.strip()
    if not text:
        raise CriticError(f"reader {llm.name}: an empty answer")
    return replace(completion, text=text)
