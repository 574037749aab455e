"""Questions, answers and open connections of the loop's evaluation, small enough to know every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from canopy_backend.evidence import Evidence
from canopy_backend.items import Item, TextItem
from canopy_client.answer import Answer, Cited, HitRecord, Round
from canopy_client.assembly import Assembler
from canopy_client.whole import whole
from canopy_milvus import Hit
from canopy_training.data import Gold, Question
from canopy_training.loop.arms import Arm
from canopy_training.loop.gold import Found
from canopy_training.loop.outcome import Outcome, RoundState
from canopy_training.loop.report import ArmRun, Setting

#: Four sentences of 12 characters each.
TEXT = "One is here. Two is here. Six is here. Ten is here."
STARTS = (0, 13, 26, 39)


def words(texts: Sequence[str]) -> list[int]:
    """A reader's tokenizer whose tokens are words."""
    return [len(text.split()) for text in texts]


def item(name: str, text: str = TEXT) -> TextItem:
    return TextItem(id=name, title=name.title(), text=text)


def question(name: str, *gold: tuple[str, int], dataset: str = "toy", answers: Sequence[str] = ("two",)) -> Question:
    """A question over its gold items; each gold is an item and the sentence in it."""
    places = tuple(Gold(item_id=one, span=(STARTS[n], STARTS[n] + 3)) for one, n in gold)
    items = tuple(item(one) for one in dict.fromkeys(one for one, _ in gold))
    return Question(
        id=name, dataset=dataset, split="dev", question=f"What of {name}?", answers=tuple(answers), items=items,
        gold=places, meta={},
    )  # fmt: skip


def evidence(name: str, *kept: tuple[int, int]) -> Evidence:
    """Evidence of an item that keeps these runs of its sentences, the whole item where none is named."""
    full = whole(item(name), 0.5, words)
    (region,) = full.regions
    regions = [
        type(region)(
            first=first, last=last, depth=1, start=STARTS[first], end=STARTS[last - 1] + 12, score=0.5, text="x"
        )
        for first, last in kept
    ] or [region]
    return type(full)(**{field: getattr(full, field) for field in full.__struct_fields__} | {"regions": regions})


def answer(*rounds: Sequence[Evidence], text: str = "", stop: Any = "max_rounds", shown: int | None = None) -> Answer:
    """An answer whose rounds found these; ``shown`` is how many regions of the last evidence the reader saw."""
    cited, made = [], []
    for number, found in enumerate(rounds, start=1):
        hits = [HitRecord(item_id=one.item_id, modality="text", title=one.title, score=0.5, new=True) for one in found]
        made.append(
            Round(number=number, query=f"query {number}", hits=hits, seconds={"retrieve": 0.5, "compress": 0.25})
        )
        cited += [
            Cited(number=len(cited) + 1 + at, round=number, regions_shown=len(one.regions), evidence=one)
            for at, one in enumerate(found)
        ]
    if shown is not None:
        cited[-1].regions_shown = shown
    return Answer(
        question="?", text=text, stop=stop, evidence=cited, rounds=made, llm_calls={"critic": 1, "reader": 1},
        tables_whole=None, tokens_before=0, tokens_after=0, tokens_read=0, seconds=2.0, reader_seconds=0.5,
    )  # fmt: skip


def outcome(
    name: str, *states: tuple[int, int, int], dataset: str = "hotpotqa", weak: bool = False, **more: Any
) -> Outcome:
    """An outcome of a question with two gold items of one gold fragment each: items, fragments and tokens a round."""
    rounds = [
        RoundState(hits=10, new=10, found=Found(items, fragments, items, fragments), tokens=tokens)
        for items, fragments, tokens in states
    ]
    return Outcome(
        question=name, dataset=dataset, weak=weak, gold_items=2, gold_fragments=2, rounds=rounds,
        stop="sufficient" if rounds else "", error="" if rounds else "down", **more,
    )  # fmt: skip


def run(arm: Arm, *outcomes: Outcome) -> ArmRun:
    return ArmRun(arm=arm, seconds=1.0, outcomes=list(outcomes))


SETTING = Setting(
    files={"toy.jsonl": "0" * 64}, split="dev", limit=None, questions=2, items=9, encoder="e" * 16, model="",
    weights="", prompts="1", budget=1000, deadline_s=60.0, in_flight=8,
)  # fmt: skip


class Store:
    """A corpus that answers each query from a table."""

    def __init__(self, found: Mapping[str, Sequence[Item]]) -> None:
        self.found = found
        self.asked: list[tuple[int, str | None]] = []
        self.texts: list[str] = []

    async def search(self, vector: npt.NDArray[np.float32], k: int, **options: Any) -> list[Hit]:
        self.asked.append((k, options.get("query_text")))
        query = self.texts[int(vector[0])]
        return [Hit(item=one, score=0.9 - n / 10, modality="text") for n, one in enumerate(self.found[query][:k])]


class Client:
    """An evidence server that keeps the first sentence of each item; vectors are places in the store's list."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def embed_query(self, queries: Sequence[str], *, deadline_s: float | None = None) -> npt.NDArray[np.float32]:
        self.store.texts += queries
        first = len(self.store.texts) - len(queries)
        return np.array([[first + at, 0.0] for at in range(len(queries))], np.float32)

    async def compress(self, query: str, items: Sequence[Item], **options: Any) -> list[Evidence]:
        return [evidence(one.id, (0, 1)) for one in items]


def assembler(budget: int = 1000) -> Assembler:
    return Assembler(budget, words)
