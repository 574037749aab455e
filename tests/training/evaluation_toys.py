"""Items, questions and a vector source small enough to know every score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from canopy_backend.fragments import Fragments, fragment
from canopy_backend.hierarchy import Hierarchy, balanced
from canopy_backend.items import ImageItem, Item, TextItem
from canopy_training.data import Gold, Question
from canopy_training.evaluation.scoring import ScoredItem, ScoredQuestion
from canopy_training.evaluation.vectors import EncodedItem, Omissions, SourceCard


def scored(
    scores: Sequence[float],
    n_fragments: int,
    gold: Sequence[int] | None = None,
    *,
    tokens: Sequence[int] | None = None,
    item_id: str = "i",
    modality: str = "text",
    is_gold: bool | None = None,
    branching: int = 2,
) -> ScoredItem:
    """An item of ten tokens a fragment and three of prefix, unless said otherwise."""
    hierarchy = balanced(n_fragments, branching)
    assert hierarchy.size == len(scores)
    mask = None
    if gold is not None:
        mask = np.zeros(n_fragments, np.bool_)
        mask[list(gold)] = True
    spans = np.stack([np.arange(n_fragments), np.arange(1, n_fragments + 1)], axis=1).astype(np.int32)
    return ScoredItem(
        item_id,
        modality,
        Fragments("text", spans),
        hierarchy,
        np.array(tokens if tokens is not None else [10] * n_fragments + [3], np.int32),
        np.array(scores, np.float32),
        gold is not None if is_gold is None else is_gold,
        mask,
    )


def asked(*items: ScoredItem, place: int = 0, dataset: str = "toy", weak: bool = False) -> ScoredQuestion:
    return ScoredQuestion(place, f"q{place}", dataset, weak, items)


# Appendix G of the paper: root; A, B; a1, a2, b1, b2. Kept: A as a whole, and b1.
WORKED = (0.50, 0.80, 0.70, 0.79, 0.10, 0.90, 0.20)


@dataclass
class ToySource:
    """Vectors in two dimensions whose first number is the score with every query."""

    scores: Mapping[str, Sequence[float]]
    name: str = "toy"
    unknown: frozenset[str] = frozenset()
    omissions: Omissions = field(default_factory=Omissions)

    @property
    def card(self) -> SourceCard:
        return SourceCard(
            name=self.name, model="toy", revision="0", node_encoding="separate", branching=2, window=9, reader="words"
        )

    def query_vectors(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = np.tile(np.array([[1, 0]], np.float32), (len(queries), 1))
        for place, query in enumerate(queries):
            if "too long" in query:
                self.omissions.queries[query] = "too long"
                vectors[place] = np.nan
        return vectors

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        return [self._encode(item) for item in items]

    def _encode(self, item: Item) -> EncodedItem | None:
        if item.id in self.unknown:
            self.omissions.items[item.id] = "too large"
            return None
        fragments = fragment(item)
        hierarchy: Hierarchy = balanced(len(fragments))
        first = np.array(self.scores.get(item.id, np.linspace(0.2, 0.8, hierarchy.size)))
        vectors = np.stack([first, np.sqrt(1 - first**2)], axis=1).astype(np.float16)
        return EncodedItem(fragments, hierarchy, vectors, np.array([10] * len(fragments) + [3], np.int32))


def passage(item_id: str, n_sentences: int = 4) -> TextItem:
    text = " ".join(f"Sentence {item_id} number {place} is here." for place in range(n_sentences))
    return TextItem(id=item_id, title="Title", text=text)


def sentence_of(item: TextItem, place: int) -> tuple[int, int]:
    start, end = fragment(item).spans[place].tolist()
    return start, end


def toy_questions() -> list[Question]:
    """Four questions on two data sets: one with gold, one with an image, one of answers alone, one too long."""
    first, second, third = passage("a"), passage("b"), passage("c")
    picture = ImageItem(id="p", caption="A picture.")
    gold = Gold(item_id="a", kind="sentence", span=sentence_of(first, 2))
    whole = Gold(item_id="b", kind="paragraph")
    return [
        _question("q1", "one", "What is third?", (first, second), (gold,)),
        _question("q2", "one", "What is seen?", (first, second, picture), (gold, whole)),
        _question("q3", "two", "What holds it?", (third,), (), answers=("number 1",)),
        _question("q4", "two", "What is too long?", (third,), (Gold(item_id="c", answer="number 3"),)),
    ]


def _question(
    name: str,
    dataset: str,
    text: str,
    items: tuple[Item, ...],
    gold: tuple[Gold, ...],
    answers: tuple[str, ...] = (),
) -> Question:
    return Question(
        id=name, dataset=dataset, split="dev", question=text, answers=answers, items=items, gold=gold, meta={}
    )
