"""What a question's run leaves: its answer, evidence, rounds and costs. All of it is JSON through msgspec."""

from __future__ import annotations

from typing import Literal

import msgspec

from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_client.options import LoopOptions
from canopy_client.verdict import Verdict

Stop = Literal[
    "sufficient",  # the critic was satisfied
    "max_rounds",  # the last round was searched
    "no_items",  # nothing was retrieved at all
    "no_new_item",  # a later round found only what was there
    "repeated_query",  # the critic asked for what was already searched
    "empty_query",  # the critic named no further query
    "critic_failed",  # no usable verdict
    "retrieval_failed",  # the store or the query encoder failed in a later round
    "compress_failed",  # the evidence server failed in a later round
    "reader_failed",  # no answer of the reader
    "deadline",  # time was up
]


class HitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One retrieved item of a round.

    Attributes:
        item_id: The item.
        modality: Its kind.
        title: Its title.
        score: Cosine of item and query.
        new: Whether no earlier round had it.
    """

    item_id: str
    modality: str
    title: str
    score: float
    new: bool


class Round(msgspec.Struct, kw_only=True):
    """One round of the loop.

    Attributes:
        number: From 1.
        query: What was searched.
        corpora: Where, by the router; empty when it did not run.
        hits: What was found, best first.
        verdict: The critic's; ``None`` when it was not asked, or failed.
        seconds: Time by stage: ``retrieve``, ``classify``, ``compress``, ``critic``, ``route``, ``look``
            where the model sees.
    """

    number: int
    query: str
    corpora: list[str] = msgspec.field(default_factory=list)
    hits: list[HitRecord] = msgspec.field(default_factory=list)
    verdict: Verdict | None = None
    seconds: dict[str, float] = msgspec.field(default_factory=dict)


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """The item that an evidence was made of, so that what was dropped can be shown beside what was kept.

    Attributes:
        item: As it was stored, without its tree.
        edges: Where its fragments meet, one more than there are fragments, in the evidence's ``unit``: fragment ``i``
            is ``[edges[i], edges[i + 1])``.
    """

    item: Item
    edges: list[int]


class PictureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of what was kept of an item, for a model that sees: where it is, never its bytes.

    Attributes:
        at_ms: The frame's time in its clip, in milliseconds; ``None`` for the picture of an image.
        width: Pixels in a row as it was sent; 0 where it could not be.
        height: Rows.
        tokens: What it took of the prompt.
        shown: Whether the reader saw it.
        reason: Why not; empty where it did, or where the budget had no room for it.
    """

    at_ms: int | None
    width: int = 0
    height: int = 0
    tokens: int = 0
    shown: bool
    reason: str = ""


class Cited(msgspec.Struct, kw_only=True):
    """Evidence under the number that the answer cites it by.

    Attributes:
        number: As in ``[1]``.
        round: The round that found it.
        regions_shown: How many of its regions, from the first, the reader saw; fewer than all when over its budget.
        cited: Whether the answer names the number.
        evidence: The evidence.
        pictures: Its pictures, where the model sees.
        original: What it was made of, where a trace was asked for.
    """

    number: int
    round: int
    regions_shown: int
    cited: bool = False
    evidence: Evidence
    pictures: list[PictureRecord] = msgspec.field(default_factory=list)
    original: Original | msgspec.UnsetType = msgspec.UNSET


class Answer(msgspec.Struct, kw_only=True):
    """The result of one question.

    Attributes:
        question: As asked.
        text: The reader's answer. When it failed or had no time: what the critic last said the evidence backs, or
            empty.
        stop: Why the loop ended.
        evidence: In retrieval order, numbered from 1.
        rounds: What happened.
        llm_calls: Calls by role: ``critic``, ``classifier``, ``router``, ``reader``.
        tables_whole: Whether tables were kept whole; ``None`` when no table was met, or nothing compressed.
        tokens_before: Reader tokens of all retrieved items.
        tokens_after: Reader tokens of what refinement kept of them.
        tokens_read: Reader tokens of the evidence in the reader's prompt: fewer when over its budget, a few more for
            the marks around each item.
        seconds: Time in all.
        reader_seconds: Time of the reader's call.
        error: What failed, in words, where ``stop`` names a failure or a deadline; else empty.
        options: The switches; ``None`` in traces of older versions.
        request_id: Name of the question in logs and in the servers' requests; empty in traces of older versions.
    """

    question: str
    text: str
    stop: Stop
    evidence: list[Cited]
    rounds: list[Round]
    llm_calls: dict[str, int]
    tables_whole: bool | None
    tokens_before: int
    tokens_after: int
    tokens_read: int
    seconds: float
    reader_seconds: float
    error: str = ""
    options: LoopOptions | None = None
    request_id: str = ""
