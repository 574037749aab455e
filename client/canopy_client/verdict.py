"""What a critic says of the evidence of a round."""

from __future__ import annotations

from typing import Final

import msgspec

#: Most tokens of a verdict: five lines.
MAX_TOKENS: Final = 400


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
