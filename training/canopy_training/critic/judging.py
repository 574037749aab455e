"""How good verdicts are: on what the loop's first round shows of each question, against what is gold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from canopy_client.critic import parse_verdict
from canopy_client.llm.base import Message
from canopy_training.critic.corpus import Encoder, Pool, query_vectors
from canopy_training.critic.samples import first_round
from canopy_training.critic.states import K, Searched

#: Answers a chat.
Speak = Callable[[Sequence[Message]], str]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict beside the right one.

    Attributes:
        id: The question.
        complete: Whether every gold item is in the evidence.
        said: ``yes``, ``no``, or nothing where the answer could not be read.
        query: What it asked for.
        wanted: Titles of the gold items that are not in the evidence and that the corpus holds.
        rank: Best rank, from 1, of one of them for the query; 0 where the query finds none of them.
    """

    id: str
    complete: bool
    said: str
    query: str
    wanted: list[str]
    rank: int


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over judgements; shares from 0 to 1, ``None`` where there is nothing to share.

    Attributes:
        questions: Judgements.
        right: Share whose yes or no is right.
        stops: Share of the complete ones that were called sufficient.
        goes_on: Share of the incomplete ones that were called insufficient.
        unreadable: Answers without a verdict.
        asked: Incomplete ones, with a wanted item in the corpus, that were called insufficient with a query.
        found_4: Share of ``asked`` whose query finds a wanted item among its first 4.
        found_10: The same among its first 10.
        gained: Share of all incomplete ones with a wanted item whose query finds one among its first 10.
    """

    questions: int
    right: float | None
    stops: float | None
    goes_on: float | None
    unreadable: int
    asked: int
    found_4: float | None
    found_10: float | None
    gained: float | None


def judge_all(
    speak: Speak,
    searched: Sequence[Searched],
    encoder: Encoder,
    pool: Pool,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Judgement]:
    """Ask for a verdict on the first round of each question, and search for what it asks for.

    Args:
        speak: The model.
        searched: The questions.
        encoder: Makes the queries' vectors.
        pool: What is searched.
        advance: Called with 1 after each question.
    """
    held = {item.title.casefold() for item in pool.items}
    judged = []
    for one in searched:
        shown = {found.title.casefold() for found in one.first.found[:K]}
        missing = [gold.title for gold in one.gold if gold.title.casefold() not in shown]
        said = parse_verdict(speak(first_round(one).messages))
        wanted = [title for title in missing if title.casefold() in held]
        query = said.query if said is not None and not said.sufficient else ""
        judged.append(
            Judgement(
                id=one.id,
                complete=not missing,
                said="" if said is None else "yes" if said.sufficient else "no",
                query=query,
                wanted=wanted,
                rank=_rank(query, wanted, encoder, pool) if query and wanted else 0,
            )
        )
        advance(1)
    return judged


def scores_of(judged: Sequence[Judgement]) -> Scores:
    """The figures of judgements."""
    complete = [one for one in judged if one.complete]
    incomplete = [one for one in judged if not one.complete]
    reachable = [one for one in incomplete if one.wanted]
    asked = [one for one in reachable if one.query]
    return Scores(
        questions=len(judged),
        right=_share([one.said == ("yes" if one.complete else "no") for one in judged]),
        stops=_share([one.said == "yes" for one in complete]),
        goes_on=_share([one.said == "no" for one in incomplete]),
        unreadable=sum(not one.said for one in judged),
        asked=len(asked),
        found_4=_share([1 <= one.rank <= 4 for one in asked]),
        found_10=_share([1 <= one.rank <= 10 for one in asked]),
        gained=_share([1 <= one.rank <= 10 for one in reachable]),
    )


def _rank(query: str, wanted: Sequence[str], encoder: Encoder, pool: Pool) -> int:
    titles = {title.casefold() for title in wanted}
    found = pool.search(query_vectors(encoder, [query])[0], K)
    return next((rank for rank, item in enumerate(found, start=1) if item.title.casefold() in titles), 0)


def _share(truths: Sequence[bool]) -> float | None:
    return round(sum(truths) / len(truths), 4) if truths else None
