"""A critic without a language model: it looks up the names that the evidence leads to and that nobody looked up."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from canopy_backend.evidence import Evidence
from canopy_client.deadline import Deadline
from canopy_client.names import ASKING, names, sentence_ends, small_words, words
from canopy_client.verdict import Verdict

#: Follow-ups of one question. On training questions a second one finds what is missing far less often than the first,
#: and nothing that needs no language model tells well whether anything is missing at all.
FOLLOW_UPS: Final = 1
#: Names of one query: two find more than one, in as many items, and a third adds nothing.
NAMES: Final = 2
#: Names that are weighed: those of the question come first, then those of the evidence in retrieval order.
MOST_NAMES: Final = 512

# Weights of a name, relative to the share of the question's words that its sentence holds; fitted on training
# questions of two hops and rounded. A name of the question itself counts as if its sentence held so much of it.
_IN_QUESTION: Final = 0.25
_EARLY: Final = 0.25  # for the first item, half of it for the second, and so on
_SEVERAL_WORDS: Final = 0.15
_KNOWN: Final = -0.12  # for a name whose words all stand in the title of one retrieved item


@dataclass(frozen=True, slots=True)
class Candidate:
    """A name that could be looked up.

    Attributes:
        name: As it is written.
        weight: How much speaks for it, from about -0.1 to 1.4.
    """

    name: str
    weight: float


class TitleCritic:
    """Asks for what is named and was not retrieved: it follows links, and cannot tell whether a question is answered.

    Candidates are the names in the question and in the evidence that are not the title of a retrieved item and were
    not asked for. A name weighs more when its sentence, with the title of its item, holds more of the question's
    words, when its item was found early, when it has several words, and when no retrieved title covers it. The two
    heaviest are the next query. The evidence counts as sufficient after ``follow_ups`` such queries, or when there is
    no candidate. Nothing is computed by a model, so equal input gives equal verdicts.

    Args:
        follow_ups: Most follow-ups of one question.
    """

    def __init__(self, *, follow_ups: int = FOLLOW_UPS) -> None:
        self._follow_ups = follow_ups

    async def judge(
        self, question: str, evidence: Sequence[Evidence], searched: Sequence[str], deadline: Deadline
    ) -> Verdict:
        """See :class:`canopy_client.critic.Critic`; it does not fail."""
        if len(searched) >= self._follow_ups:
            return Verdict(rationale=f"Names were looked up in {len(searched)} follow-ups.", sufficient=True)
        found = candidates(question, evidence, searched)
        if not found:
            return Verdict(rationale="No name is mentioned that was not looked up.", sufficient=True)
        chosen = _heaviest(found)
        told = " and ".join(f"{one.name!r} (weight {one.weight:.2f})" for one in chosen)
        query = ", ".join(one.name for one in chosen)
        return Verdict(rationale=f"Mentioned and not looked up: {told}.", sufficient=False, missing=query, query=query)


def _heaviest(found: Sequence[Candidate]) -> list[Candidate]:
    """The heaviest names, none of whose words are all in another's; the earlier of two that weigh the same."""
    chosen: list[tuple[Candidate, frozenset[str]]] = []
    for one in sorted(found, key=lambda candidate: -candidate.weight):
        mine = words(one.name)
        if not any(mine <= other or other <= mine for _, other in chosen):
            chosen.append((one, mine))
        if len(chosen) == NAMES:
            break
    return [one for one, _ in chosen]


def candidates(question: str, evidence: Sequence[Evidence], searched: Sequence[str]) -> list[Candidate]:
    """Names that are mentioned and were neither retrieved nor searched, each once with its best weight.

    Args:
        question: The original question.
        evidence: In retrieval order.
        searched: Names that were looked up.
    """
    small = small_words([question, *(one.text for one in evidence)])
    importance = _importance(question, evidence)
    # Titles by word, so that a name is held against the few that share one with it.
    titles: dict[str, set[int]] = {}
    for place, one in enumerate(evidence):
        for word in words(one.title):
            titles.setdefault(word, set()).add(place)
    known = {_key(one.title) for one in evidence}
    before = [_key(query) for query in searched]
    found: dict[str, Candidate] = {}
    mentions = ((name, _IN_QUESTION + _EARLY) for name, _ in names(question, small | ASKING))
    in_items = (_mentions(one, rank, small, importance) for rank, one in enumerate(evidence, start=1))
    for name, mentioned in chain(mentions, *in_items):
        key = _key(name)
        if key in known or (key not in found and len(found) >= MOST_NAMES) or any(key in query for query in before):
            continue
        weight = mentioned + _of_words(words(name), titles)
        if key not in found or weight > found[key].weight:
            found[key] = Candidate(name, weight)
    return list(found.values())


def _mentions(
    one: Evidence, rank: int, small: frozenset[str], importance: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """The names of an item's kept text, each with the weight of the sentence that mentions it."""
    ends = sentence_ends(one.text)
    edges = [0, *ends, len(one.text)]
    title = words(one.title)
    total = sum(importance.values()) or 1.0
    shares: dict[int, float] = {}
    for name, start in names(one.text, small):
        place = bisect_right(ends, start)
        if place not in shares:
            held = title | words(one.text[edges[place] : edges[place + 1]])
            shares[place] = sum(importance[word] for word in importance.keys() & held) / total
        yield name, shares[place] + _EARLY / rank


def _importance(question: str, evidence: Sequence[Evidence]) -> dict[str, float]:
    """How much each word of the question tells: less, the more of the items hold it."""
    counts = Counter(chain.from_iterable(words(one.title) | words(one.text) for one in evidence))
    wanted = words(question)
    return {word: max(0.0, math.log((1 + len(evidence)) / (counts[word] + 0.5))) for word in wanted}


def _of_words(name: frozenset[str], titles: Mapping[str, set[int]]) -> float:
    """What a name weighs by its words alone; ``titles`` are places of titles by word."""
    sharing = Counter(chain.from_iterable(titles[word] for word in name if word in titles))
    covered = max(sharing.values(), default=0) / len(name)
    return (_SEVERAL_WORDS if len(name) > 1 else 0.0) + _KNOWN * covered


def _key(name: str) -> str:
    """A name without what does not change a search."""
    return " ".join(name.casefold().split())
