"""What the orchestrator needs of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from canopy_client.deadline import Deadline

#: Most bytes of an answer that are taken from a server: far more than any answer has.
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered.

    Attributes:
        text: The answer alone, without the prompt.
        finish_reason: ``"stop"``, or ``"length"`` when ``max_tokens`` cut it; ``""`` where not told.
        prompt_tokens: Tokens of the prompt, 0 where not told.
        completion_tokens: Tokens of the answer, 0 where not told.
    """

    text: str
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class LanguageModel(Protocol):
    """A chat model behind some transport. Decoding is greedy: equal input should give equal output."""

    @property
    def name(self) -> str:
        """The model, as shown in traces."""
        ...

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        deadline: Deadline,
    ) -> Completion:
        """Answer a chat.

        Args:
            messages: The chat so far.
            max_tokens: Most tokens of the answer.
            schema: JSON schema that the answer must follow; ``None`` for free text.
            deadline: When the caller stops waiting.

        Raises:
            CriticError: The model refused the request or failed.
            ServerUnavailable: No server answered.
            Overloaded: The server's queue stayed full.
            DeadlineExceeded: The deadline passed.
        """
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
