"""From the pieces that a peer keeps to kept tokens and gold recall, counted as the method's own are.

Tokens: the reader's, of every kept piece with the white space behind it, as often as the peer repeats it; and of the
prefix (title, a table's caption and header) once for every item of which a piece is kept. Recall: a gold fragment
counts as left when at least :data:`COVER` of its characters, white space apart, are in kept pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.peers.mapping import through_space
from benchmarks.peers.protocol import AskedItem
from canopy_backend.encoding import fragment_bodies
from canopy_backend.fragments import Fragments, fragment
from canopy_backend.items import Item, TextItem
from canopy_backend.tokenization import TokenCounter

#: Share of a gold fragment's characters that has to be kept.
COVER: Final = 0.8

BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CutItem:
    """An item with one peer's pieces.

    Attributes:
        tokens: int64 ``[P]``, the reader's tokens of each piece.
        prefix: The reader's tokens of the prefix.
        shares: float64 ``[P, G]``, the share of each gold fragment that is in each piece.
        splittable: Whether the item has two fragments or more; only such count for the evaluation's recall.
    """

    tokens: Int64Array
    prefix: int
    shares: Float64Array
    splittable: bool


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What is kept of one question at each of S settings.

    Attributes:
        tokens: float64 ``[S]``, kept tokens.
        left: float64 ``[S]``, gold fragments left in splittable items.
        gold: Gold fragments of those.
        left_any: float64 ``[S]``, gold fragments left in any item.
        gold_any: Gold fragments of those.
    """

    tokens: Float64Array
    left: Float64Array
    gold: int
    left_any: Float64Array
    gold_any: int


def as_asked(item: Item) -> AskedItem:
    """An item as peers get it: a text as it is; of anything else a line a fragment, as the project renders it."""
    prefix, bodies = fragment_bodies(item, fragment(item))
    if isinstance(item, TextItem):
        return AskedItem(prefix=prefix, text=item.text, lines=[])
    return AskedItem(prefix=prefix, text=None, lines=bodies)


def cut_item(
    item: Item,
    fragments: Fragments,
    gold: BoolArray | None,
    pieces: Sequence[Sequence[int]],
    lost: dict[int, str],
    counter: TokenCounter,
) -> CutItem:
    """Count the tokens of an item's pieces, and how much of each gold fragment is in each.

    Args:
        item: The item.
        fragments: Its fragments.
        gold: bool ``[F]``, its gold fragments; ``None`` for none.
        pieces: Span of each piece; ``[-1, -1]`` for one without a place.
        lost: The texts of those; their tokens count, and they hold no gold.
        counter: Counts the reader's tokens.
    """
    spans = np.array(pieces, np.int64).reshape(-1, 2)
    wanted = np.flatnonzero(gold) if gold is not None else np.zeros(0, np.int64)
    asked = as_asked(item)
    text = asked["text"]
    if text is None:
        texts = [asked["lines"][start] for start, _ in spans.tolist()]
        inside = np.arange(len(asked["lines"]) + 1)
        places = np.stack([wanted, wanted + 1], axis=1)
    else:
        places = fragments.spans[wanted].astype(np.int64)
        texts = [
            lost[place] if start < 0 else text[start : through_space(text, end)]
            for place, (start, end) in enumerate(spans.tolist())
        ]
        inside = np.concatenate([[0], np.cumsum([not character.isspace() for character in text])])
    tokens = counter.count([*texts, asked["prefix"]]).astype(np.int64)
    return CutItem(tokens[:-1], int(tokens[-1]), _shares(spans, places, inside), len(fragments) > 1)


def measure(items: Sequence[CutItem], kept: Sequence[Sequence[Sequence[int]]]) -> Measured:
    """Tokens and recall of one question.

    Args:
        items: The question's items.
        kept: For each setting, for each item, the kept pieces.
    """
    tokens = np.zeros(len(kept))
    left, left_any = np.zeros(len(kept)), np.zeros(len(kept))
    gold = gold_any = 0
    for place, item in enumerate(items):
        times = np.array([np.bincount(one[place], minlength=len(item.tokens)) for one in kept], np.int64)
        tokens += times @ item.tokens + (times > 0).any(axis=1) * item.prefix
        # Shares of a fragment add up in binary, so a whole one may come out a little short.
        covered = ((times > 0) @ item.shares >= COVER - 1e-9).sum(axis=1)
        left_any += covered
        gold_any += item.shares.shape[1]
        if item.splittable:
            left += covered
            gold += item.shares.shape[1]
    return Measured(tokens, left, gold, left_any, gold_any)


def _shares(pieces: Int64Array, gold: Int64Array, inside: Int64Array) -> Float64Array:
    """How much of each gold fragment is in each piece, float64 ``[P, G]``; ``inside`` counts characters up to each."""
    start = np.clip(np.maximum(pieces[:, None, 0], gold[None, :, 0]), 0, None)
    end = np.maximum(np.minimum(pieces[:, None, 1], gold[None, :, 1]), start)
    found = inside[np.minimum(end, len(inside) - 1)] - inside[np.minimum(start, len(inside) - 1)]
    size = inside[gold[:, 1]] - inside[gold[:, 0]]
    return np.asarray(found / np.maximum(size, 1)[None, :], np.float64)
