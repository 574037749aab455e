"""What goes between the comparison and the peers' worker: one JSON object a line, both ways. Standard library only.

A piece is a part of an item that a peer keeps or drops: a sentence, a chunk, or a line. Of a text it is a half-open
span of code points, of lines the span ``[i, i + 1)``; ``[-1, -1]`` is a piece whose place is not known.
"""

from __future__ import annotations

from typing import TypedDict

#: For each setting of a knob, for each item, the pieces that are kept; one that the peer repeats stands there twice.
Kept = list[list[list[int]]]


class AskedItem(TypedDict):
    """An item as a peer gets it: ``text``, or ``lines`` (rows of a table), with what the reader sees above it."""

    prefix: str
    text: str | None
    lines: list[str]


class Asked(TypedDict):
    """A question.

    ``timed``: each peer starts with nothing encoded, so that its time is its own; else vectors are shared and kept.
    ``groups`` names sets of its items that are compressed as if no others were there.
    """

    place: int
    question: str
    timed: bool
    items: list[AskedItem]
    groups: dict[str, list[int]]


class ArmReply(TypedDict):
    """What an arm keeps in each group, and for how many items the peer raised an error, at each setting."""

    kept: dict[str, Kept]
    refused: dict[str, list[int]]


class PeerReply(TypedDict):
    """One peer's reply.

    ``seconds`` is its wall clock for the first group where asked for: cutting, encoding, one setting; else 0. ``cut``
    counts pieces that are longer than the encoder's window, which it cuts off. ``pieces`` are those of each item,
    ``lost`` item, piece and text of each piece without a place.
    """

    seconds: float
    cut: int
    pieces: list[list[list[int]]]
    lost: list[tuple[int, int, str]]
    arms: dict[str, ArmReply]


class Reply(TypedDict):
    """The replies of all peers to one question."""

    place: int
    peers: dict[str, PeerReply]


class Hello(TypedDict):
    """The worker's first line: versions of the packages that matter."""

    versions: dict[str, str]


class Job(TypedDict):
    """What a contender of the load bench is to do, and how often.

    ``texts`` are encoded and nothing else where there are any; else ``items`` are compressed for ``question``, of which
    a contender that encodes all nodes gets the ``nodes``. ``repeats`` calls are timed, divided among ``at_once``
    threads.
    """

    question: str
    items: list[AskedItem]
    nodes: list[str]
    texts: list[str]
    repeats: int
    at_once: int


class Timed(TypedDict):
    """What a contender did: the wall clock of each call and of all of them, and what the last one kept.

    ``pieces``, ``lost`` and ``kept`` are as in :class:`PeerReply` and :class:`ArmReply`, of one setting; empty for
    texts.
    """

    seconds: list[float]
    elapsed: float
    pieces: list[list[list[int]]]
    lost: list[tuple[int, int, str]]
    kept: list[list[int]]
