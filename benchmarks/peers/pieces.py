"""What a peer in the peers' environment has to offer, and the pieces that it cuts items into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers.arms import Arm
from benchmarks.peers.mapping import Span
from benchmarks.peers.protocol import AskedItem


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one item.

    Attributes:
        texts: What they say.
        spans: Where they stand; ``None`` for one whose place is not known. A line is its own place.
        prefix: What the reader sees above the item.
    """

    texts: list[str]
    spans: list[Span | None]
    prefix: str

    def titled(self) -> list[str]:
        """The texts with the prefix in front of each."""
        return [f"{self.prefix}\n{text}" if self.prefix else text for text in self.texts]


class Peer(Protocol):
    """A peer: how it cuts items, what it encodes of a piece, what it keeps."""

    def cut(self, items: Sequence[AskedItem]) -> list[Pieces]:
        """The pieces of each item. A line of an item that has lines is a piece."""

    def encoded(self, pieces: Pieces) -> list[str]:
        """What is encoded of each piece."""

    def run(self, question: str, items: Sequence[Pieces], arm: Arm, knob: float) -> tuple[list[list[int]], int]:
        """The pieces that are kept of each item, and the number of items for which the peer raised an error."""


def cut_items(items: Sequence[AskedItem], cut: Callable[[str], tuple[list[str], list[Span | None]]]) -> list[Pieces]:
    """Cut texts with a function that gives pieces and their places; lines are pieces already."""
    found = []
    for item in items:
        text = item["text"]
        if text is None:
            lines = item["lines"]
            found.append(Pieces(list(lines), [(place, place + 1) for place in range(len(lines))], item["prefix"]))
        else:
            texts, spans = cut(text)
            found.append(Pieces(texts, spans, item["prefix"]))
    return found


def by_item(flat: Sequence[int], items: Sequence[Pieces]) -> list[list[int]]:
    """Places among all pieces of a question to places in each item."""
    owners = [(item, piece) for item, pieces in enumerate(items) for piece in range(len(pieces.texts))]
    kept: list[list[int]] = [[] for _ in items]
    for place in flat:
        item, piece = owners[place]
        kept[item].append(piece)
    return kept
