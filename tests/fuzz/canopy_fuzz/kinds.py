"""What a target is: a decoder, the errors that it may raise, and files to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class NotReached(Exception):
    """Bytes that something in front of the decoder refuses, so that it is never called with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder of bytes from outside.

    Attributes:
        name: Short name, unique.
        decodes: What the bytes are, for the page of results.
        run: Decodes, and checks what came out; raises ``AssertionError`` where that cannot be.
        allowed: The errors that bytes may lead to; any other is a finding.
        seeds: Bytes to begin with, good ones and bad ones.
        words: Pieces that mutations put in.
        max_len: Longest input in bytes.
        seconds: How long to run where executions are so dear that their number cannot be set; ``None`` for a number.
    """

    name: str
    decodes: str
    run: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]
    words: tuple[bytes, ...] = ()
    max_len: int = 512
    seconds: int | None = None

    def execute(self, data: bytes) -> bool:
        """Run once.

        Returns:
            Whether the bytes were taken, not refused.
        """
        try:
            self.run(data)
        except (NotReached, *self.allowed):
            return False
        return True
