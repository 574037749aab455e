"""Merging of ranked lists: over modalities by score, over two kinds of score by rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from canopy_backend.items import Modality

#: The constant of reciprocal rank fusion: how little the very first ranks stand out.
RANK_CONSTANT: Final = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that a search named.

    Attributes:
        id: The item's id.
        modality: Its modality, and so its collection.
        score: Higher is better.
    """

    id: str
    modality: Modality
    score: float


def merge(lists: Iterable[Sequence[Candidate]], k: int) -> list[Candidate]:
    """The best ``k`` of several lists by score; an id counts once, ties go by id so that runs agree."""
    best: dict[str, Candidate] = {}
    for candidate in sorted((one for part in lists for one in part), key=lambda one: (-one.score, one.id)):
        best.setdefault(candidate.id, candidate)
    return list(best.values())[:k]


def fuse(lists: Sequence[Sequence[Candidate]], k: int) -> list[Candidate]:
    """Reciprocal rank fusion of lists that are each in order; an empty list takes nothing away from the others."""
    scores: dict[str, float] = {}
    modalities: dict[str, Modality] = {}
    for ranked in lists:
        for rank, candidate in enumerate(ranked, start=1):
            scores[candidate.id] = scores.get(candidate.id, 0.0) + 1.0 / (RANK_CONSTANT + rank)
            modalities.setdefault(candidate.id, candidate.modality)
    fused = [Candidate(name, modalities[name], score) for name, score in scores.items()]
    return merge([fused], k)
