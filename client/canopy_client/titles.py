"""A critic without a language model: it follows the best name that the evidence mentions and nobody looked up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from canopy_backend.evidence import Evidence
from canopy_client.deadline import Deadline
from canopy_client.names import names, small_words
from canopy_client.retrieval import Embed
from canopy_client.verdict import Verdict

#: Names that are scored: those of the question come first, then those of the evidence in retrieval order.
MOST_NAMES: Final = 128
#: Least cosine of a name and the question for the name to be followed.
LEAST_SCORE: Final = 0.35


class TitleCritic:
    """Asks for what is named and was not retrieved, by the name's likeness to the question.

    Candidates are the names in the question and in the evidence that are not the title of a retrieved item and were
    not asked for before. The query encoder scores them against the question; the best one is the next query, and where
    none reaches ``least_score`` the evidence counts as sufficient. Equal input gives equal verdicts.

    It cannot tell whether the evidence answers the question: it is a way to follow links without a language model.

    Args:
        embed: Makes query vectors at unit length; :meth:`canopy_client.AsyncCanopyClient.embed_query`.
        least_score: Least cosine of a name that is followed.
        most_names: Most names that are scored, in one call.
    """

    def __init__(self, embed: Embed, *, least_score: float = LEAST_SCORE, most_names: int = MOST_NAMES) -> None:
        self._embed = embed
        self._least_score = least_score
        self._most_names = most_names

    async def judge(
        self, question: str, evidence: Sequence[Evidence], searched: Sequence[str], deadline: Deadline
    ) -> Verdict:
        """See :class:`canopy_client.critic.Critic`.

        Raises:
            CanopyError: The query encoder failed.
        """
        found = candidates(question, evidence, searched)[: self._most_names]
        if not found:
            return Verdict(rationale="No name is mentioned that was not looked up.", sufficient=True)
        vectors = await self._embed([question, *found])
        scores = vectors[1:] @ vectors[0]
        best = int(np.argmax(scores))
        name, score = found[best], float(scores[best])
        if score < self._least_score:
            told = f"{name!r} is the nearest of {len(found)} names that were not looked up, at {score:.2f}."
            return Verdict(rationale=told, sufficient=True)
        told = f"{name!r} is mentioned and was not looked up; nearest of {len(found)} names, at {score:.2f}."
        return Verdict(rationale=told, sufficient=False, missing=name, query=name)


def candidates(question: str, evidence: Sequence[Evidence], searched: Sequence[str]) -> list[str]:
    """Names that are mentioned and were neither retrieved nor searched, each once: the question's first."""
    texts = [question, *(one.text for one in evidence)]
    small = small_words(texts)
    known = {_key(name) for name in chain(searched, (one.title for one in evidence))}
    found: dict[str, str] = {}
    for name in chain.from_iterable(names(text, small) for text in texts):
        key = _key(name)
        if key not in known:
            found.setdefault(key, name)
    return list(found.values())


def _key(name: str) -> str:
    """A name without what does not change a search."""
    return " ".join(name.casefold().split())
