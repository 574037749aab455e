"""Every peer on every question, and the method on the same items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from benchmarks.peers.arms import PEERS, Knobs
from benchmarks.peers.measures import CutItem, Measured, as_asked, cut_item, measure
from benchmarks.peers.protocol import Asked, PeerReply, Reply
from canopy_backend.items import Item
from canopy_backend.tokenization import TokenCounter
from canopy_training.data import Question
from canopy_training.evaluation.scoring import ScoredQuestion, gold_items
from canopy_training.evaluation.selectors import Selector
from canopy_training.evaluation.sweeps import Sweep

#: What is shown to a compressor.
ALL: Final = "all"
GOLD: Final = "gold"
MODES: Final = {
    ALL: "all items of a question shown; peers may drop whole items, the rule keeps a part of each",
    GOLD: "only a question's gold items shown",
}


class Asking(Protocol):
    """Whoever puts a question to all peers."""

    def ask(self, asked: Asked) -> Reply:
        """What each of them keeps."""


@dataclass(slots=True)
class Effort:
    """What one peer did.

    Attributes:
        timed: Items that it was timed on.
        seconds: Wall clock of cutting, encoding and one setting on them, nothing remembered.
        pieces: Pieces that it cut items into.
        cut: Of these, pieces longer than the encoder's window, the rest of which the peer never read.
        lost: Of these, pieces whose place in the item could not be found; they cost tokens and hold no gold.
    """

    timed: int = 0
    seconds: float = 0.0
    pieces: int = 0
    cut: int = 0
    lost: int = 0


@dataclass(slots=True)
class Collected:
    """What all peers keep.

    Attributes:
        rows: By mode and arm, a measurement for each question of the mode.
        refused: By mode and arm, at each setting, for how many items the peer raised an error.
        efforts: By peer.
    """

    rows: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)
    refused: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    efforts: dict[str, Effort] = field(default_factory=lambda: {name: Effort() for name in PEERS})


def collect(
    worker: Asking,
    scored: Sequence[ScoredQuestion],
    questions: Sequence[Question],
    counter: TokenCounter,
    timed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Put every question to all peers and count what they keep.

    Args:
        worker: The peers.
        scored: The questions with the items that are shown, as the method was scored on.
        questions: All questions; ``scored`` says by ``place`` which.
        counter: Counts the reader's tokens.
        timed: Questions of each data set, the first ones, on which peers are timed.
        advance: Called with 1 after each question.
    """
    found = Collected()
    seen: Counter[str] = Counter()
    for question in scored:
        by_id = {item.id: item for item in questions[question.place].items}
        items = [by_id[item.item_id] for item in question.items]
        groups = {ALL: list(range(len(items)))}
        groups[GOLD] = [place for place, item in enumerate(question.items) if item.gold is not None]
        # A group that holds everything, or nothing, is not asked for.
        sent = {name: places for name, places in groups.items() if name == ALL or 0 < len(places) < len(items)}
        asked = Asked(
            place=question.place,
            question=questions[question.place].question,
            timed=seen[question.dataset] < timed,
            items=[as_asked(item) for item in items],
            groups=sent,
        )
        reply = worker.ask(asked)
        seen[question.dataset] += 1
        for peer, answer in reply["peers"].items():
            found.efforts[peer].timed += len(items) * asked["timed"]
            _take(found, peer, answer, question, items, groups, counter)
        advance(1)
    return found


def own(scored: Sequence[ScoredQuestion], selector: Selector, mode: str) -> list[Measured]:
    """One setting of a selector on the scored items, measured as peers are."""
    return [_own(question, selector) for question in (gold_items(scored) if mode == GOLD else scored)]


def as_sweep(knobs: Knobs, rows: Sequence[Measured], *, any_item: bool = False) -> Sweep:
    """Measurements as a sweep, with the evaluation's recall or with that of items of one fragment as well.

    Args:
        knobs: The S settings.
        rows: A measurement a question.
        any_item: Whether gold of items with a single fragment counts too.
    """
    left = np.array([row.left_any if any_item else row.left for row in rows], np.float64).reshape(-1, len(knobs))
    gold = np.array([row.gold_any if any_item else row.gold for row in rows], np.float64)
    tokens = np.array([row.tokens for row in rows], np.float64).reshape(-1, len(knobs))
    return Sweep(knobs, tokens, left / np.maximum(gold, 1)[:, None], (gold > 0).astype(np.float64))


def _take(
    found: Collected,
    peer: str,
    reply: PeerReply,
    question: ScoredQuestion,
    items: Sequence[Item],
    groups: dict[str, list[int]],
    counter: TokenCounter,
) -> None:
    """Add one peer's reply to one question."""
    lost: list[dict[int, str]] = [{} for _ in items]
    for item, piece, text in reply["lost"]:
        lost[item][piece] = text
    cut: list[CutItem] = [
        cut_item(item, one.fragments, one.gold, pieces, missing, counter)
        for item, one, pieces, missing in zip(items, question.items, reply["pieces"], lost, strict=True)
    ]
    effort = found.efforts[peer]
    effort.seconds += reply["seconds"]
    effort.pieces += sum(map(len, reply["pieces"]))
    effort.cut += reply["cut"]
    effort.lost += len(reply["lost"])
    for arm, answer in reply["arms"].items():
        for mode, places in groups.items():
            if not places:
                continue
            asked = mode if mode in answer["kept"] else ALL
            row = measure([cut[place] for place in places], answer["kept"][asked])
            found.rows.setdefault((mode, arm), []).append(row)
            refused = found.refused.setdefault((mode, arm), Counter())
            refused.update(dict(enumerate(answer["refused"][asked])))


def _own(question: ScoredQuestion, selector: Selector) -> Measured:
    tokens = left = left_any = 0
    gold = gold_any = 0
    for item, mask in zip(question.items, selector(question.items, (0,)), strict=True):
        kept = mask[0]
        tokens += int(item.tokens[:-1][kept].sum()) + int(kept.any()) * int(item.tokens[-1])
        if item.gold is not None:
            left_any += int((item.gold & kept).sum())
            gold_any += int(item.gold.sum())
            if len(kept) > 1:
                left += int((item.gold & kept).sum())
                gold += int(item.gold.sum())
    return Measured(np.array([tokens], float), np.array([left], float), gold, np.array([left_any], float), gold_any)
