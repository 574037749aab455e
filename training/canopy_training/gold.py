"""From annotated places to gold fragments: the leaves of an item that hold its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from canopy_backend.fragments import Fragments, fragment, renderer
from canopy_backend.items import ImageItem, Item
from canopy_training.data import Gold, Question

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """An item whose gold fragments are known.

    Attributes:
        item: The item.
        fragments: Its fragments.
        gold: bool ``[F]``, the fragments that hold evidence, at least one.
        weak: Whether they were found from the answers alone.
    """

    item: Item
    fragments: Fragments
    gold: BoolArray
    weak: bool


def locate(question: Question) -> tuple[list[Located], list[str]]:
    """The gold fragments of a question's items.

    A span, a row or a time makes every fragment that it overlaps gold; an answer string makes every fragment that
    holds it gold, whatever its case. A question without gold is weakly supervised: the items that hold one of its
    answers are gold where they hold it.

    Returns:
        The items with gold fragments, in the question's order, and one line for each gold item whose place could not
        be found.
    """
    places: dict[str, list[Gold]] = {}
    for gold in question.gold:
        places.setdefault(gold.item_id, []).append(gold)
    weak = not question.gold
    located: list[Located] = []
    lost: list[str] = []
    for item in question.items:
        if not weak and item.id not in places:
            continue
        fragments = fragment(item)
        if weak:
            gold_fragments = _holding(item, fragments, question.answers)
        else:
            gold_fragments = np.zeros(len(fragments), np.bool_)
            for gold in places[item.id]:
                gold_fragments |= _overlapping(item, fragments, gold)
        if gold_fragments.any():
            located.append(Located(item, fragments, gold_fragments, weak))
        elif not weak:
            kinds = ", ".join(sorted({gold.kind or "whole item" for gold in places[item.id]}))
            lost.append(f"question {question.id!r:.80}, item {item.id!r:.80}: no place for its gold ({kinds})")
    if weak and not located:
        lost.append(f"question {question.id!r:.80}: no item holds one of its answers")
    return located, lost


def _overlapping(item: Item, fragments: Fragments, gold: Gold) -> BoolArray:
    """The fragments that one gold names, bool ``[F]``."""
    starts, ends = fragments.spans.T
    if gold.span is not None:
        return np.asarray((starts < gold.span[1]) & (gold.span[0] < ends))
    if gold.rows is not None:
        return np.isin(starts, gold.rows)
    if gold.time is not None:
        begin, end = (round(seconds * 1000) for seconds in gold.time)
        return np.asarray((starts < end) & (begin < ends))
    if gold.answer is not None:
        return _holding(item, fragments, [gold.answer])
    return np.full(len(fragments), isinstance(item, ImageItem))


def _holding(item: Item, fragments: Fragments, answers: Sequence[str]) -> BoolArray:
    """The fragments whose text holds one of the answers, bool ``[F]``."""
    wanted = [answer.strip().casefold() for answer in answers if answer.strip()]
    show = renderer(item, fragments)
    skipped = len(show(0, 0)) if fragments.unit == "table" else 0  # the header, which every row is shown under
    texts = (show(place, place + 1)[skipped:].casefold() for place in range(len(fragments)))
    return np.array([any(answer in text for answer in wanted) for text in texts], np.bool_)
