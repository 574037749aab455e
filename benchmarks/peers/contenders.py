"""Who runs beside the served method in the load bench. Read in both environments: standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.peers import arms


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender, at one setting.

    Attributes:
        name: What results call it.
        label: What tables call it.
        arm: The arm whose peer and knob it has; ``None`` for one that only encodes.
        knob: The setting.
        static: Whether it encodes with the distilled static model in place of the encoder.
    """

    name: str
    label: str
    arm: str | None
    knob: float = 0.0
    static: bool = False


LANGCHAIN: Final = "langchain"
LLAMAINDEX: Final = "llamaindex"
SENTENCES: Final = "sentences"
NODES: Final = "nodes"
STATIC: Final = "model2vec"

#: How many sentences of all items are kept: LangChain's default, and the same for those who have none of their own.
BEST: Final = 20

CONTENDERS: Final = (
    Contender(LANGCHAIN, "LangChain EmbeddingsFilter, best 20 sentences (its default)", "langchain_k", BEST),
    Contender(LLAMAINDEX, "LlamaIndex SentenceEmbeddingOptimizer, half (its guide)", "llamaindex_percentile", 0.5),
    Contender(SENTENCES, "sentence-transformers, all sentences, best 20", "recomp", BEST),
    Contender(NODES, "sentence-transformers, all nodes of all trees", None),
    Contender(STATIC, "model2vec, static model of the same base, best 20 sentences", "recomp", BEST, static=True),
)
#: The two that a user would pick for the same purpose; ratios are taken to the faster of them.
FILTERS: Final = (LANGCHAIN, LLAMAINDEX)


def contender(name: str) -> Contender:
    """The contender called ``name``."""
    return next(one for one in CONTENDERS if one.name == name)


def arm_of(one: Contender) -> arms.Arm:
    """Its arm.

    Raises:
        ValueError: It has none.
    """
    for arm in arms.ARMS:
        if arm.name == one.arm:
            return arm
    raise ValueError(f"contender {one.name!r} keeps nothing")
