"""What the orchestrator needs of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, Protocol

from canopy_client.deadline import Deadline

#: Most bytes of an answer that are taken from a server: far more than any answer has.
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture for a model that sees.

    Attributes:
        base64: A JPEG file, in base64.
        width: Pixels in a row.
        height: Rows.
        tokens: What it takes of a prompt, with the model's own marks around it.
    """

    base64: str = field(repr=False)
    width: int
    height: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture in a text, in front of the code point ``at``.

    Where it stands is a number beside the text and not a mark inside of it, so no text can move it or spell one.
    """

    at: int
    picture: Picture


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    Attributes:
        role: Who speaks.
        content: What is said.
        pictures: Pictures in it, by place, for models that see.
    """

    role: Literal["system", "user", "assistant"]
    content: str
    pictures: tuple[Placed, ...] = ()

    def parts(self) -> list[str | Picture]:
        """Texts and pictures in order; no text is empty."""
        edges = [0, *(one.at for one in self.pictures), len(self.content)]
        texts = [self.content[start:end] for start, end in pairwise(edges)]
        found: list[str | Picture] = [texts[0]]
        for one, text in zip(self.pictures, texts[1:], strict=True):
            found += [one.picture, text]
        return [part for part in found if part != ""]


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
