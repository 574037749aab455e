"""What the types of a trace allow and no run writes: found before a page is made of it, and named by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from canopy_backend.errors import InvalidRequest
from canopy_backend.evidence import Evidence, Trace
from canopy_client.answer import Answer, Cited, Original
from canopy_client.trace import TraceFile

#: Most items of one trace: a page of more would be of use to nobody.
MAX_ITEMS: Final = 2000


def check(content: TraceFile) -> None:
    """Refuse a trace that contradicts itself.

    Raises:
        InvalidRequest: Names the first field that is wrong.
    """
    if not content.answers:
        raise InvalidRequest("field 'answers': empty, so there is nothing to show")
    items = sum(len(answer.evidence) for answer in content.answers)
    if items > MAX_ITEMS:
        raise InvalidRequest(f"field 'answers': {items} items of evidence, and a page shows at most {MAX_ITEMS}")
    for place, answer in enumerate(content.answers):
        for field, reason in _answer(answer):
            raise InvalidRequest(f"field 'answers[{place}].{field}': {reason}")


def _answer(answer: Answer) -> Iterator[tuple[str, str]]:
    for place, one in enumerate(answer.rounds):
        if one.number != place + 1:
            yield f"rounds[{place}].number", f"{one.number} at place {place + 1}"
    for place, cited in enumerate(answer.evidence):
        for field, reason in _cited(cited, place, len(answer.rounds)):
            yield f"evidence[{place}].{field}", reason


def _cited(cited: Cited, place: int, rounds: int) -> Iterator[tuple[str, str]]:
    if cited.number != place + 1:
        yield "number", f"{cited.number} at place {place + 1}"
    if not 1 <= cited.round <= rounds:
        yield "round", f"{cited.round}, and there are {rounds}"
    for field, reason in _evidence(cited.evidence):
        yield f"evidence.{field}", reason
    if not isinstance(cited.original, msgspec.UnsetType):
        for field, reason in _original(cited.original, cited.evidence):
            yield f"original.{field}", reason


def _evidence(one: Evidence) -> Iterator[tuple[str, str]]:
    if one.fragments < 1:
        yield "fragments", f"{one.fragments}, and every item has one"
    reached = 0
    for place, region in enumerate(one.regions):
        if not reached <= region.first < region.last <= one.fragments:
            yield f"regions[{place}]", f"fragments [{region.first}, {region.last}) of {one.fragments}, after {reached}"
        reached = region.last
    if not isinstance(one.trace, msgspec.UnsetType):
        for field, reason in _trace(one.trace, one):
            yield f"trace.nodes{field}", reason


def _trace(trace: Trace, one: Evidence) -> Iterator[tuple[str, str]]:
    """A walk from the root down: each node below a node before it, and what it kept is the evidence's regions."""
    if not trace.nodes:
        yield "", "empty, and the root is always looked at"
    known: dict[int, tuple[int, int]] = {}
    reached: dict[int, int] = {}
    for place, node in enumerate(trace.nodes):
        above = known.get(node.parent)
        if node.node in known:
            yield f"[{place}].node", f"{node.node} is there twice"
        if place == 0 and (node.parent, node.first, node.last) != (-1, 0, one.fragments):
            yield "[0]", f"is not the root of {one.fragments} fragments"
        if place and above is None:
            yield f"[{place}].parent", f"{node.parent} is not a node before it"
        first, last = above or (0, one.fragments)
        if not first <= node.first < node.last <= last:
            yield f"[{place}]", f"fragments [{node.first}, {node.last}) do not lie in its parent's [{first}, {last})"
        if node.first != reached.get(node.parent, first):
            yield f"[{place}].first", f"{node.first} does not follow the node beside it"
        known[node.node] = (node.first, node.last)
        reached[node.parent] = node.last
    kept = sorted((node.first, node.last) for node in trace.nodes if node.outcome == "kept")
    if kept != [(region.first, region.last) for region in one.regions]:
        yield "", "the nodes that were kept are not the evidence's regions"


def _original(original: Original, one: Evidence) -> Iterator[tuple[str, str]]:
    item, edges = original.item, original.edges
    if item.id != one.item_id:
        yield "item.id", f"{item.id!r:.80} beside evidence of {one.item_id!r:.80}"
    if item.modality != one.modality:
        yield "item.modality", f"{item.modality} beside evidence of {one.modality}"
    if len(edges) != one.fragments + 1:
        yield "edges", f"{len(edges)} for {one.fragments} fragments, which have one more"
    if edges != sorted(edges) or min(edges, default=0) < 0:
        yield "edges", "do not rise from 0 on"
