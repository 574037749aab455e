"""Progress of one question, in the order in which it happens."""

from __future__ import annotations

from dataclasses import dataclass

from canopy_backend.evidence import Evidence
from canopy_client.answer import Answer, HitRecord
from canopy_client.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A round begins with its query."""

    number: int
    query: str


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Items came back, those of earlier rounds included."""

    number: int
    hits: list[HitRecord]


@dataclass(frozen=True, slots=True)
class Compressed:
    """The new items became evidence, in retrieval order."""

    number: int
    evidence: list[Evidence]


@dataclass(frozen=True, slots=True)
class Judged:
    """The critic spoke."""

    number: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Answered:
    """The reader spoke; nothing follows."""

    answer: Answer


Event = RoundStarted | Retrieved | Compressed | Judged | Answered
