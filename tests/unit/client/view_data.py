"""Traces for the tests of the page: the real loop and the real walk, with scores that count shared words."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from canopy_backend.evidence import Evidence, assemble, decisions
from canopy_backend.fragments import fragment, renderer
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Cue, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.refinement import refine
from canopy_client import LoopOptions, Orchestrator
from canopy_client.answer import Answer
from canopy_client.trace import TraceFile
from tests.unit.client.client_fakes import MemoryRetriever, ScriptedModel, verdict

QUESTION = "When was judo invented, and who teaches it at the harbour?"
FOLLOW_UP = "who teaches judo at the harbour hall"

JUDO = TextItem(
    id="judo",
    title="Judo",
    text="Judo was invented in 1882 by Kanō Jigorō. 🥋 His first hall had twelve mats. He had studied two schools. "
    "A contest is won at once by ippon. The jacket is woven thickly. Women had to wait until 1992. "
    "Coloured belts came later. Kanō died at sea in 1938.",
)
TIMES = TableItem(
    id="times",
    title="Hall times",
    caption="Winter",
    columns=["day", "class", "who teaches"],
    rows=[
        ["Mon", "karate", "Ode"],
        ["Tue", "judo at the harbour hall", "Vail"],
        ["Wed", "chess", "–"],
        ["Thu", "choir"],
    ],
)
TALK = VideoItem(
    id="talk",
    title="A walk along the harbour",
    duration_s=150,
    segments=[
        Cue(0, 12, "Good morning from the pier."),
        Cue(25, 40, "The ferry is late today."),
        Cue(62, 80, "In the hall, Vail teaches judo."),
        Cue(121, 140, "That was all."),
    ],
)
FLAG = ImageItem(id="flag", title="Pilot flag", caption="A flag in two halves, white and red.", uri="images/flag.png")
HOSTILE_TITLE = '</script><script>window.hacked = "title"</script>'
HOSTILE = TextItem(
    id="hostile",
    title=HOSTILE_TITLE,
    text='<img src=x onerror="window.hacked = 1"> judo was invented. <!-- <script> It was not. {{style}} {{data}} & '
    "\u2028 \u202e reversed. ]]></script><svg onload=alert(1)> The end of it.",
)
EMPTY = TextItem(id="empty", text="")


class WalkingCompressor:
    """Real hierarchies, refinement and evidence; a node's score is the cosine of its words and the query's."""

    async def compress(
        self,
        query: str,
        items: Sequence[Item],
        *,
        keep_tables_whole: bool = False,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> list[Evidence]:
        whole = [keep_tables_whole and item.modality == "table" for item in items]
        return [walk(query, item, keep_whole=one, trace=trace) for item, one in zip(items, whole, strict=True)]


def walk(query: str, item: Item, *, keep_whole: bool = False, trace: bool = True) -> Evidence:
    """The evidence of one item."""
    fragments = fragment(item)
    hierarchy = balanced(len(fragments))
    render = renderer(item, fragments)
    runs = list(zip(hierarchy.first.tolist(), hierarchy.last.tolist(), strict=True))
    scores = np.array([cosine(query, render(*run)) for run in runs], np.float32)
    tokens = [len(words(render(n, n + 1))) for n in range(len(fragments))]
    kept = refine(hierarchy, scores, keep_whole=keep_whole)
    counts = np.array([*tokens, len(words(item.title))], np.int32)
    found = assemble(item, fragments, hierarchy, kept, scores, counts)
    if trace:
        found = Evidence(**{name: getattr(found, name) for name in found.__struct_fields__ if name != "trace"},
                         trace=decisions(hierarchy, scores, kept))  # fmt: skip
    return found


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def cosine(left: str, right: str) -> float:
    one, other = (Counter(word for word in words(text) if len(word) > 3) for text in (left, right))
    product = sum(one[word] * other[word] for word in one)
    return product / (math.hypot(*one.values()) * math.hypot(*other.values()) or 1.0)


async def answer(
    items: Sequence[Item], more: Sequence[Item] = (), *, trace: bool = True, table: str = "lookup"
) -> Answer:
    """A question that needs a second round."""
    llm = ScriptedModel(
        critic=[
            verdict("no", missing="Who teaches it.", query=FOLLOW_UP, answer="1882"),
            verdict("yes", answer="Vail"),
        ],
        classifier=[table],
        reader=["In 1882 [1], and Vail teaches it."],
    )
    retriever = MemoryRetriever({QUESTION: items, FOLLOW_UP: [*items[:1], *more]})
    loop = Orchestrator(retriever, WalkingCompressor(), llm, options=LoopOptions(trace=trace))
    return await loop.answer(QUESTION)


def content(*answers: Answer) -> TraceFile:
    return TraceFile(created="2026-01-02T03:04:05+00:00", model="scripted", settings={"k": "10"}, answers=list(answers))


def example() -> TraceFile:
    """All modalities over two rounds, and a second question whose items are hostile."""

    async def run() -> TraceFile:
        first = await answer([JUDO, TIMES, FLAG], [TALK, EMPTY])
        return content(first, await answer([HOSTILE, TIMES], [JUDO], table="aggregate"))

    return asyncio.run(run())
