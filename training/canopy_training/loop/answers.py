"""A reader's answer against the accepted ones: exact match and token F1, normalised as in SQuAD's script."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

_CITATIONS: Final = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")
_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")
_MARKS: Final = str.maketrans("", "", string.punctuation)


class Marks(NamedTuple):
    """How good an answer is, by the accepted answer that it fits best; each from 0 to 1."""

    exact: float
    f1: float
    holds: float


def normal(text: str) -> str:
    """Lower case, without punctuation, articles and spare white space; citations such as ``[1]`` go first.

    As ``normalize_answer`` of SQuAD's evaluation script (Rajpurkar et al., 2016), but for the citations.
    """
    text = _CITATIONS.sub(" ", text).lower().translate(_MARKS)
    return " ".join(_ARTICLES.sub(" ", text).split())


def mark(answer: str, accepted: Sequence[str]) -> Marks:
    """Exact match, token F1, and whether the answer's words hold those of an accepted one in a row.

    Args:
        answer: The reader's words.
        accepted: Accepted answers; none makes everything 0.
    """
    given = normal(answer)
    wanted = [normal(one) for one in accepted]
    return Marks(
        exact=max((float(given == one) for one in wanted), default=0.0),
        f1=max((_f1(given.split(), one.split()) for one in wanted), default=0.0),
        holds=max((float(bool(one) and f" {one} " in f" {given} ") for one in wanted), default=0.0),
    )


def _f1(given: list[str], wanted: list[str]) -> float:
    """Harmonic mean of precision and recall of the words; two answers of no words are equal."""
    if not given or not wanted:
        return float(given == wanted)
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted))
