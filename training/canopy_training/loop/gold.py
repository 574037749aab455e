"""What of a question's gold an answer's evidence holds, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import TrainingError
from canopy_backend.fragments import fragment
from canopy_client.answer import Cited
from canopy_training.data import Question
from canopy_training.gold import locate

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class GoldItem:
    """One gold item.

    Attributes:
        item_id: The item.
        title: Its title.
        fragments: bool ``[F]``, its gold fragments; all of them where the place is not known.
        located: Whether their place is known.
    """

    item_id: str
    title: str
    fragments: BoolArray
    located: bool


class Found(NamedTuple):
    """Counts of one question at one moment.

    Attributes:
        items: Gold items in the evidence.
        fragments: Gold fragments in the evidence.
        shown: Gold fragments of the retrieved gold items that can lose some: two fragments or more, place known.
        left: Those of them that are in the evidence.
    """

    items: int
    fragments: int
    shown: int
    left: int


def gold_of(question: Question) -> tuple[list[GoldItem], list[str]]:
    """The gold items of a question, and a line for each whose place was not found.

    Such an item is gold as a whole. A question without gold has the items that hold one of its answers.
    """
    located, lost = locate(question)
    masks = {entry.item.id: entry.gold for entry in located}
    named = {gold.item_id for gold in question.gold} | masks.keys()
    items = [
        GoldItem(
            item.id,
            item.title,
            masks[item.id] if item.id in masks else np.ones(len(fragment(item)), np.bool_),
            item.id in masks,
        )
        for item in question.items
        if item.id in named
    ]
    return items, lost


def found(gold: Sequence[GoldItem], evidence: Sequence[Cited], last_round: int) -> Found:
    """What the evidence of the rounds up to ``last_round`` holds, as far as the reader is shown it.

    Raises:
        TrainingError: The server cuts an item into other fragments than this version does.
    """
    by_id = {one.evidence.item_id: one for one in evidence if one.round <= last_round and one.regions_shown > 0}
    items = fragments = shown = left = 0
    for one in gold:
        cited = by_id.get(one.item_id)
        if cited is None:
            continue
        held = int((one.fragments & _kept(cited, len(one.fragments))).sum())
        items += 1
        fragments += held
        if one.located and len(one.fragments) > 1:
            shown += int(one.fragments.sum())
            left += held
    return Found(items, fragments, shown, left)


def _kept(cited: Cited, size: int) -> BoolArray:
    """The fragments that the reader is shown, bool ``[F]``."""
    if cited.evidence.fragments != size:
        raise TrainingError(
            f"item {cited.evidence.item_id!r:.80}: the server cuts it into {cited.evidence.fragments} fragments, this "
            f"version into {size}; evaluate with the version that the server runs"
        )
    kept = np.zeros(size, np.bool_)
    for region in cited.evidence.regions[: cited.regions_shown]:
        kept[region.first : region.last] = True
    return kept
