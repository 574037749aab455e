"""Counts the calls of a language model for the question that makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from canopy_client.deadline import Deadline
from canopy_client.llm.base import Completion, LanguageModel, Message

#: The calls of the question at work, by role. A context variable: one critic serves many questions at a time.
_calls: ContextVar[Counter[str] | None] = ContextVar("canopy_calls", default=None)


@contextmanager
def counting(calls: Counter[str]) -> Iterator[None]:
    """Count what :class:`Counted` models are asked meanwhile, by this task and by those that it starts."""
    token = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(token)


class Counted:
    """A language model in one role.

    Args:
        llm: The model.
        role: What its calls count as: ``critic``, ``classifier``, ``router``, ``reader``.
    """

    def __init__(self, llm: LanguageModel, role: str) -> None:
        self._llm, self._role = llm, role

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
        calls = _calls.get()
        if calls is not None:
            calls[self._role] += 1
        return await self._llm.generate(messages, max_tokens=max_tokens, schema=schema, deadline=deadline)

    async def close(self) -> None:
        """Nothing: the model belongs to whoever opened it."""
