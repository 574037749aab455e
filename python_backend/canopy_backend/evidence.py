"""Evidence: what is kept of one item, in the item's own words, and the wire form of it.

Regions are in source order and never nest. Regions that touch are one piece of text; where something was left out
between two of them the text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import InvalidRequest
from canopy_backend.fragments import Fragments, Unit, renderer
from canopy_backend.fragments.table import gap_line, header_lines, row_line
from canopy_backend.fragments.video import Transcript
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item, Modality, TableItem, TextItem, VideoItem
from canopy_backend.reading import UNREADABLE, told

SpanUnit: TypeAlias = Literal["code_point", "row", "millisecond", "image"]
Outcome: TypeAlias = Literal["split", "kept", "dropped"]

_UNITS: Final[dict[Unit, SpanUnit]] = {
    "text": "code_point",
    "table": "row",
    "video": "millisecond",
    "image": "image",
}
#: What stands between two regions of a text, and on a line between two regions of a transcript.
TEXT_GAP: Final = " […] "
VIDEO_GAP: Final = "[…]"
#: Digits of a score on the wire: more than a float16 vector can tell apart.
_DIGITS: Final = 6

Run: TypeAlias = tuple[int, int]
Place: TypeAlias = tuple[int, int, int, int, int, float]


class Region(msgspec.Struct, frozen=True):
    """One kept run of fragments.

    Attributes:
        first: First fragment.
        last: One past the last fragment.
        depth: Depth of the node, 0 for the whole item.
        start: Where the region starts in the item, in the evidence's ``unit``.
        end: Where it ends, half-open.
        score: Cosine of the query and the node.
        text: The region in the item's own words; a table's with its header.
    """

    first: int
    last: int
    depth: int
    start: int
    end: int
    score: float
    text: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one item.

    Attributes:
        item_id: The item's id.
        modality: ``text``, ``table``, ``video`` or ``image``.
        title: The item's title.
        text: The regions joined, gaps marked; the item's content as it was where everything is kept.
        regions: The kept regions in source order, at least one.
        unit: What ``start`` and ``end`` count.
        fragments: Fragments of the item.
        kept_fragments: Fragments inside the regions.
        tokens_in: Reader tokens of the item, its title and header included.
        tokens_kept: Reader tokens of the kept fragments, title and header included.
        whole: Whether every fragment is kept.
        truncated: Whether text of the item did not reach the encoder.
        trace: Every visited node, where it was asked for; the wire carries it beside the evidence, in ``TRACE``.
    """

    item_id: str
    modality: Modality
    title: str
    text: str
    regions: list[Region]
    unit: SpanUnit
    fragments: int
    kept_fragments: int
    tokens_in: int
    tokens_kept: int
    whole: bool
    truncated: bool = False
    trace: Trace | msgspec.UnsetType = msgspec.UNSET


class Decision(msgspec.Struct, frozen=True):
    """What became of one visited node: ``split`` into better children, ``kept`` whole, or ``dropped``.

    Children of a kept node are ``dropped`` as nodes: they scored lower than it, and their fragments stay with it.
    """

    node: int
    parent: int
    first: int
    last: int
    depth: int
    score: float
    outcome: Outcome


class Trace(msgspec.Struct, frozen=True):
    """Every node of one item whose score the refinement compared, in breadth-first order."""

    nodes: list[Decision]


_encoder = msgspec.json.Encoder()
_evidence_decoder = msgspec.json.Decoder(Evidence)


@dataclass(frozen=True, slots=True)
class Regions:
    """The kept nodes of several items, item by item in source order, as one row a region.

    Attributes:
        item: The item's place.
        first: First fragment.
        last: One past the last fragment.
        depth: Depth of the node.
        score: Its score, rounded as on the wire.
    """

    item: list[int]
    first: list[int]
    last: list[int]
    depth: list[int]
    score: list[float]


def assemble(
    item: Item,
    fragments: Fragments,
    hierarchy: Hierarchy,
    kept: npt.NDArray[np.integer[Any]],
    scores: npt.NDArray[np.float32],
    tokens: npt.NDArray[np.int32],
    truncated: bool = False,
) -> Evidence:
    """The evidence of one item.

    Args:
        item: The item.
        fragments: Its fragments.
        hierarchy: The nodes over them.
        kept: integers ``[K]``, kept nodes, K at least 1, none above another.
        scores: float32 ``[N]``, cosine of the query and each node.
        tokens: int32 ``[F + 1]``, reader tokens of each fragment, then of what stands in front of every region.
        truncated: Whether text of the item did not reach the encoder.
    """
    mask = np.zeros(hierarchy.size, np.bool_)
    mask[kept] = True
    (evidence,), _ = assemble_many([item], [fragments], [hierarchy], mask, scores, [tokens])
    return msgspec.structs.replace(evidence, truncated=True) if truncated else evidence


def assemble_many(
    items: Sequence[Item],
    fragments: Sequence[Fragments],
    hierarchies: Sequence[Hierarchy],
    kept: npt.NDArray[np.bool_],
    scores: npt.NDArray[np.float32],
    tokens: Sequence[npt.NDArray[np.int32]],
) -> tuple[list[Evidence], Regions]:
    """The evidence of each of n items; arrays of all items are handled together.

    Args:
        items: The items.
        fragments: Their fragments.
        hierarchies: The nodes over them.
        kept: bool ``[N]``, the kept nodes of all items one after another, at least one of each.
        scores: float32 ``[N]``, cosine of the query and each node.
        tokens: int32 ``[F_i + 1]`` of each item, as for :func:`assemble`.

    Returns:
        The evidence, and its regions as rows.
    """
    sizes = [hierarchy.size for hierarchy in hierarchies]
    nodes = np.flatnonzero(kept)
    owner = np.searchsorted(np.cumsum(sizes), nodes, side="right")
    first = np.concatenate([hierarchy.first for hierarchy in hierarchies])[nodes]
    order = np.lexsort((first, owner))
    nodes, owner, first = nodes[order], owner[order], first[order]
    last = np.concatenate([hierarchy.last for hierarchy in hierarchies])[nodes]
    depth = np.concatenate([hierarchy.depth for hierarchy in hierarchies])[nodes]
    counts = [len(one) for one in fragments]
    before = np.cumsum([0, *counts[:-1]])  # fragments of the items in front
    spans = np.concatenate([one.spans for one in fragments])
    starts = spans[before[owner] + first, 0]
    ends = spans[before[owner] + last - 1, 1]
    # Token counts of a run of fragments as a difference of sums; each item has one entry more than it has fragments.
    sums = np.concatenate([[0], *tokens]).cumsum()
    lead = before + np.arange(len(items))
    inside = sums[lead[owner] + last] - sums[lead[owner] + first]
    bounds = np.searchsorted(owner, np.arange(len(items)))
    prefix = sums[lead + counts + 1] - sums[lead + counts]
    tokens_kept = (np.add.reduceat(inside, bounds) + prefix).tolist()
    tokens_in = (sums[lead + counts + 1] - sums[lead]).tolist()
    rounded = [round(value, _DIGITS) for value in scores[nodes].tolist()]
    rows = Regions(owner.tolist(), first.tolist(), last.tolist(), depth.tolist(), rounded)
    places = list(zip(rows.first, rows.last, rows.depth, starts.tolist(), ends.tolist(), rounded, strict=True))
    edges = [*bounds.tolist(), len(places)]
    evidence = [
        _evidence(item, one, places[edges[place] : edges[place + 1]], tokens_in[place], tokens_kept[place])
        for place, (item, one) in enumerate(zip(items, fragments, strict=True))
    ]
    return evidence, rows


def _evidence(item: Item, fragments: Fragments, places: list[Place], tokens_in: int, tokens_kept: int) -> Evidence:
    """The evidence of one item from its regions: first, last, depth, start, end, score."""
    if isinstance(item, TextItem):
        content = item.text
        regions = [Region(*place, content[place[3] : place[4]]) for place in places]
    else:
        render = renderer(item, fragments)
        regions = [Region(*place, render(place[0], place[1])) for place in places]
    kept = 0
    for place in places:
        kept += place[1] - place[0]
    text = regions[0].text if len(regions) == 1 else _text(item, fragments, _joined([place[:2] for place in places]))
    total = len(fragments)
    return Evidence(
        item_id=item.id,
        modality=item.modality,
        title=item.title,
        text=text,
        regions=regions,
        unit=_UNITS[fragments.unit],
        fragments=total,
        kept_fragments=kept,
        tokens_in=tokens_in,
        tokens_kept=tokens_kept,
        whole=kept == total,
    )


def decisions(hierarchy: Hierarchy, scores: npt.NDArray[np.float32], kept: npt.NDArray[np.integer[Any]]) -> Trace:
    """Every node that was compared on the way to the kept ones, and below these, where their children scored lower.

    A table that was kept whatever its scores has no comparisons, so where a kept node's children did not all score
    lower, none of them is listed.

    Args:
        hierarchy: The item's nodes.
        scores: float32 ``[N]``.
        kept: integers ``[K]``, kept nodes, none above another.
    """
    split = np.zeros(hierarchy.size, np.bool_)
    above = np.unique(hierarchy.parent[kept])
    while len(above) and above[-1] >= 0:
        above = above[above >= 0]
        split[above] = True
        above = np.unique(hierarchy.parent[above])
    outcome = np.full(hierarchy.size, 2, np.int8)
    outcome[split] = 0
    outcome[kept] = 1
    visited = np.zeros(hierarchy.size, np.bool_)
    visited[0] = True
    above = hierarchy.parent[1:]
    compared = split.copy()
    compared[kept] = True
    compared[above[(scores[1:] >= scores[above]) & ~split[above]]] = False
    visited[1:] = compared[above]
    nodes = np.flatnonzero(visited)
    names: tuple[Outcome, ...] = ("split", "kept", "dropped")
    rows = zip(
        nodes.tolist(),
        hierarchy.parent[nodes].tolist(),
        hierarchy.first[nodes].tolist(),
        hierarchy.last[nodes].tolist(),
        hierarchy.depth[nodes].tolist(),
        scores[nodes].tolist(),
        outcome[nodes].tolist(),
        strict=True,
    )
    return Trace(
        [
            Decision(node, parent, first, last, depth, round(score, _DIGITS), names[result])
            for node, parent, first, last, depth, score, result in rows
        ]
    )


def encode_evidence(evidence: Evidence) -> bytes:
    """The evidence as one JSON object, UTF-8."""
    return _encoder.encode(evidence)


def encode_trace(trace: Trace) -> bytes:
    """The trace as one JSON object, UTF-8."""
    return _encoder.encode(trace)


def decode_evidence(payload: bytes) -> Evidence:
    """Parse evidence.

    Raises:
        InvalidRequest: It is not the JSON of an evidence.
    """
    try:
        return _evidence_decoder.decode(payload)
    except UNREADABLE as error:
        raise InvalidRequest(f"not an evidence: {told(error)}") from None


def evidence_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of one evidence."""
    (schema,), components = msgspec.json.schema_components([Evidence], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CANOPY evidence",
        **schema,
        "$defs": components,
    }


def _joined(runs: list[Run]) -> list[Run]:
    """Runs in source order, those that touch made one."""
    pieces: list[Run] = []
    for first, last in runs:
        if pieces and pieces[-1][1] == first:
            pieces[-1] = (pieces[-1][0], last)
        else:
            pieces.append((first, last))
    return pieces


def _text(item: Item, fragments: Fragments, pieces: list[Run]) -> str:
    """The pieces of one item, gaps between them shown."""
    if isinstance(item, TableItem):
        return _table_text(item, pieces)
    if isinstance(item, VideoItem):
        return _video_text(item, len(fragments), pieces)
    render = renderer(item, fragments)
    *before, final = [render(*piece) for piece in pieces]
    return "".join([*(text.rstrip() + TEXT_GAP for text in before), final])


def _table_text(item: TableItem, pieces: list[Run]) -> str:
    """One table with one header."""
    width = len(item.columns)
    lines = [header_lines(item)]
    for place, (first, last) in enumerate(pieces):
        if place:
            lines.append(gap_line(width))
        lines += [row_line(row, width) for row in item.rows[first:last]]
    return "\n".join(lines)


def _video_text(item: VideoItem, n_segments: int, pieces: list[Run]) -> str:
    """One transcript; a cue that reaches from one piece into another stands in the first."""
    transcript = Transcript(item, n_segments)
    lines: list[str] = []
    seen = -1
    for first, last in pieces:
        cues = [cue for cue in transcript.lines(first, last) if cue > seen]
        if cues and lines:
            lines.append(VIDEO_GAP)
        lines += [transcript.texts[cue] for cue in cues]
        seen = max([seen, *cues])
    return "\n".join(lines)
