"""Where a question stands after a round: what the loop would have found, and what of it is gold.

For every question: what its own words find, and what a follow-up query finds for each gold item's title and for the
title of an item that is no help. :mod:`canopy_training.critic.samples` puts states together from these parts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from canopy_backend.errors import TrainingError
from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_backend.reading import UNREADABLE, told
from canopy_training.critic.corpus import Encoder, Pool, query_vectors
from canopy_training.data import Question

#: Items of a round, as in the loop, and those behind them that take the place of a gold item that is held back.
K: Final = 10
SPARE: Final = 2
#: New items that are kept of a follow-up search.
NEW: Final = 5
#: Questions whose items are encoded together.
_CHUNK: Final = 32


class GoldItem(msgspec.Struct, frozen=True):
    """An item that the answer rests on.

    Attributes:
        title: Its title; a query of just this finds it nearly always.
        item_id: Its id; empty where the data names it and does not hold it.
        sentence: The first sentence that the answer rests on, or the start of the item.
    """

    title: str
    item_id: str
    sentence: str = ""


class Search(msgspec.Struct, frozen=True):
    """A query and what it found, compressed for it, the best first; of a follow-up the first few that may be new."""

    query: str
    found: list[Evidence]


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """A question with everything that its states are made of.

    Attributes:
        id: The question's id.
        dataset: Its data set.
        question: The question.
        answer: Its first accepted answer.
        gold: What the answer rests on, in the order of the hops where it can be told.
        first: What the question finds, with ``SPARE`` items over ``K``.
        follow: What the title of each gold item finds, in the order of ``gold``.
        astray: What the title of another found item finds.
    """

    id: str
    dataset: str
    question: str
    answer: str
    gold: list[GoldItem]
    first: Search
    follow: list[Search]
    astray: Search


def search_all(
    questions: Sequence[Question],
    encoder: Encoder,
    pool: Pool,
    *,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Searched]:
    """Search for every question that rests on at least two items.

    Args:
        questions: The questions; those with one gold item are left out.
        encoder: Makes vectors and evidence.
        pool: What is searched.
        seed: Of the choice of titles that lead astray.
        advance: Called with the number of questions each time some are done.

    Raises:
        TrainingError: No question rests on two items.
    """
    wanted = [(question, gold) for question in questions if len(gold := gold_items(question)) > 1]
    if not wanted:
        raise TrainingError("no question whose gold names two items: the critic has nothing to learn from")
    result: list[Searched] = []
    for start in range(0, len(wanted), _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        result += [_search(question, gold, encoder, pool, seed) for question, gold in chunk]
        advance(len(chunk))
    return result


def gold_items(question: Question) -> list[GoldItem]:
    """The items that a question's answer rests on: those that the data holds, and those that it only names.

    The one that the question names comes first and the one that holds the answer last, so that a list reads as the hops
    do.
    """
    by_id = {item.id: item for item in question.items}
    found: dict[str, GoldItem] = {}
    for gold in question.gold:
        item = by_id[gold.item_id]
        text = getattr(item, "text", "")
        sentence = text[slice(*gold.span)] if gold.span is not None else text[:200]
        found.setdefault(item.title, GoldItem(item.title, item.id, sentence))
    for title, *_ in _named(question.meta):
        found.setdefault(title, GoldItem(title, "", ""))
    answer = question.answers[0] if question.answers else ""
    return in_hops(list(found.values()), question.question, answer)


def in_hops(gold: Sequence[GoldItem], question: str, answer: str) -> list[GoldItem]:
    """Gold items in the order of the hops, as far as it can be told."""

    def place(one: GoldItem) -> tuple[bool, bool]:
        held = bool(answer) and answer.casefold() in f"{one.title}\n{one.sentence}".casefold()
        return bare(one.title) not in question.casefold(), held

    return sorted(gold, key=place)


def _named(meta: dict[str, Any]) -> list[list[Any]]:
    missing = meta.get("missing")
    return missing if isinstance(missing, list) else []


def bare(title: str) -> str:
    """A title in lower case, without what stands in brackets to tell it from others."""
    return title.partition(" (")[0].strip().casefold()


def _search(question: Question, gold: list[GoldItem], encoder: Encoder, pool: Pool, seed: int) -> Searched:
    titles = [one.title for one in gold]
    first_vector = query_vectors(encoder, [question.question])[0]
    items = pool.search(first_vector, K + SPARE)
    others = [item.title for item in items[:K] if item.title not in titles] or [question.question]
    wrong = random.Random(f"{seed} {question.id}").choice(others)  # noqa: S311 - no secret
    queries = [*titles, wrong]
    vectors = query_vectors(encoder, queries)
    found = [pool.search(vector, K) for vector in vectors]
    first = {item.id for item in items[:K] if item.title not in titles}
    found = [[item for item in hits if item.id not in first][:NEW] for hits in found]
    encoder.prepare([*items, *(item for hits in found for item in hits)])
    searches = [
        Search(query, _stripped(encoder.compress(vector, hits)))
        for query, vector, hits in zip(queries, vectors, found, strict=True)
    ]
    return Searched(
        id=question.id,
        dataset=question.dataset,
        question=question.question,
        answer=question.answers[0] if question.answers else "",
        gold=gold,
        first=Search(question.question, _stripped(encoder.compress(first_vector, items))),
        follow=searches[:-1],
        astray=searches[-1],
    )


def _stripped(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Without the regions, whose text stands in the evidence too."""
    return [msgspec.structs.replace(one, regions=[]) for one in evidence]


def items_of(questions: Sequence[Question]) -> dict[str, Item]:
    """Every item of the questions, by id."""
    return {item.id: item for question in questions for item in question.items}


def save(file: Path, searched: Sequence[Searched]) -> None:
    """Write states, a JSON line each."""
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in searched))


def load(file: Path) -> list[Searched]:
    """Read what :func:`save` wrote.

    Raises:
        TrainingError: The file is missing or damaged.
    """
    try:
        return [msgspec.json.decode(line, type=Searched) for line in file.read_bytes().splitlines()]
    except (OSError, *UNREADABLE) as error:
        raise TrainingError(f"{file}: {told(error)}; delete it to search again") from None
