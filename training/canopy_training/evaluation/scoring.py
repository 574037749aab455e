"""From questions and a vector source to the scores of every node of every shown item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import TrainingError
from canopy_backend.fragments import Fragments
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item
from canopy_backend.refinement import score
from canopy_backend.templates import item_text
from canopy_backend.tree import content_hash
from canopy_training.data import Question
from canopy_training.evaluation.vectors import EncodedItem, VectorSource
from canopy_training.gold import Located, locate

#: Items, and characters of their texts, that are encoded together.
_BATCH_ITEMS: Final = 64
_BATCH_CHARS: Final = 48_000

BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredItem:
    """One shown item of one question.

    Attributes:
        item_id: The item.
        modality: Its modality.
        fragments: Its fragments.
        hierarchy: The nodes over them.
        tokens: int32 ``[F + 1]``, the reader's tokens of each fragment and then of the prefix.
        scores: float32 ``[N]``, of each node with the question.
        is_gold: Whether a gold names the item.
        gold: bool ``[F]``, its gold fragments; ``None`` where it has none, or their place is not known.
    """

    item_id: str
    modality: str
    fragments: Fragments
    hierarchy: Hierarchy
    tokens: npt.NDArray[np.int32]
    scores: Float32Array
    is_gold: bool
    gold: BoolArray | None


@dataclass(frozen=True, slots=True, eq=False)
class ScoredQuestion:
    """A question with its shown items.

    Attributes:
        place: Its place among the questions of the evaluation.
        id: Its id.
        dataset: Its data set.
        weak: Whether its gold comes from the answers alone.
        items: Its items, in the source's order.
    """

    place: int
    id: str
    dataset: str
    weak: bool
    items: tuple[ScoredItem, ...]


def locate_all(questions: Sequence[Question]) -> tuple[list[dict[str, Located]], list[str]]:
    """The located items of each question by id, and a line for each gold item without a place."""
    located: list[dict[str, Located]] = []
    lost: list[str] = []
    for question in questions:
        found, missing = locate(question)
        located.append({entry.item.id: entry for entry in found})
        lost += [f"{question.dataset}: {line}" for line in missing]
    return located, lost


def unique_items(questions: Sequence[Question]) -> dict[bytes, Item]:
    """The items that have to be encoded, equal contents once, by content hash."""
    return {content_hash(item): item for question in questions for item in question.items}


def score_questions(
    source: VectorSource,
    questions: Sequence[Question],
    located: Sequence[dict[str, Located]],
    advance: Callable[[int], None] = lambda _: None,
) -> list[ScoredQuestion]:
    """Score every node of every item of every question.

    Args:
        source: Where the vectors come from.
        questions: The questions.
        located: Their located items, from :func:`locate_all`.
        advance: Called with the number of items each time some are encoded.

    Returns:
        The questions in order. One without a query vector is left out, as is an item without vectors; the source's
        ``omissions`` name them.
    """
    queries = source.query_vectors([question.question for question in questions])
    askers: dict[bytes, list[tuple[int, int]]] = {}
    for place, question in enumerate(questions):
        for index, item in enumerate(question.items):
            askers.setdefault(content_hash(item), []).append((place, index))
    rows: list[dict[int, ScoredItem]] = [{} for _ in questions]
    for keys, items in _batches(unique_items(questions)):
        for key, encoded in zip(keys, source.node_vectors(items), strict=True):
            if encoded is None:
                continue
            for place, index in askers[key]:
                question = questions[place]
                rows[place][index] = _scored(question, question.items[index], encoded, queries[place], located[place])
        advance(len(items))
    usable: BoolArray = np.isfinite(queries.sum(axis=1))
    return [
        ScoredQuestion(
            place=place,
            id=question.id,
            dataset=question.dataset,
            weak=not question.gold,
            items=tuple(rows[place][index] for index in sorted(rows[place])),
        )
        for place, question in enumerate(questions)
        if usable[place] and rows[place]
    ]


def shared(systems: Sequence[Sequence[ScoredQuestion]]) -> list[list[ScoredQuestion]]:
    """The same systems on the questions and items that all of them have, so that they can be compared in pairs."""
    have = [{(q.place, item.item_id) for q in questions for item in q.items} for questions in systems]
    both = set.intersection(*have)
    reduced = [
        [replace(q, items=tuple(item for item in q.items if (q.place, item.item_id) in both)) for q in questions]
        for questions in systems
    ]
    return [[question for question in questions if question.items] for questions in reduced]


def _scored(
    question: Question, item: Item, encoded: EncodedItem, query: Float32Array, located: dict[str, Located]
) -> ScoredItem:
    entry = located.get(item.id)
    if entry is not None and len(entry.gold) != len(encoded.fragments):
        raise TrainingError(
            f"item {item.id!r:.80}: the server cuts it into {len(encoded.fragments)} fragments, this version into "
            f"{len(entry.gold)}; evaluate with the version that the server runs"
        )
    return ScoredItem(
        item.id,
        item.modality,
        encoded.fragments,
        encoded.hierarchy,
        encoded.tokens,
        score(encoded.vectors, query),
        entry is not None or any(gold.item_id == item.id for gold in question.gold),
        None if entry is None else entry.gold,
    )


def _batches(items: dict[bytes, Item]) -> Iterator[tuple[list[bytes], list[Item]]]:
    """Items of about one length together, the longest first."""
    sized = sorted(((len(item_text(item)), key) for key, item in items.items()), reverse=True)
    keys: list[bytes] = []
    chars = 0
    for size, key in sized:
        if keys and (len(keys) == _BATCH_ITEMS or chars + size > _BATCH_CHARS):
            yield keys, [items[one] for one in keys]
            keys, chars = [], 0
        keys.append(key)
        chars += size
    if keys:
        yield keys, [items[one] for one in keys]


def gold_items(questions: Sequence[ScoredQuestion]) -> list[ScoredQuestion]:
    """The questions with those of their items alone whose gold fragments are known."""
    reduced = [replace(q, items=tuple(item for item in q.items if item.gold is not None)) for q in questions]
    return [question for question in reduced if question.items]
