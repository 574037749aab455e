"""What is compared: each peer with its knob and the settings that the knob is swept over.

This module is read in both environments and imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Knobs = tuple[float, ...]

#: A count that keeps everything.
EVERYTHING: Final = 1_000_000
_THRESHOLDS: Final[Knobs] = (0.9, 0.8, *(round(0.7 - 0.025 * step, 3) for step in range(29)), -0.1, -1.0)
_SHARES: Final[Knobs] = tuple(round(0.05 * step, 2) for step in range(1, 21))
_TOTALS: Final[Knobs] = (1, 2, 3, 4, 5, 7, 10, 13, 16, 20, 25, 30, 40, 50, 70, 100, 150, 250, 500, 1000, EVERYTHING)


@dataclass(frozen=True, slots=True)
class Arm:
    """One peer with one knob.

    Attributes:
        name: What results call it.
        peer: The peer that runs it; arms of one peer share its pieces and its vectors.
        label: What tables call it.
        knob: The knob.
        knobs: Its settings, from the strictest on.
        own: The setting that the peer comes with or that its documentation shows.
        own_label: Where that comes from.
    """

    name: str
    peer: str
    label: str
    knob: str
    knobs: Knobs
    own: float | None = None
    own_label: str = ""


LANGCHAIN: Final = "langchain"
LANGCHAIN_TITLED: Final = "langchain_titled"
LANGCHAIN_CHUNKS: Final = "langchain_chunks"
LLAMAINDEX: Final = "llamaindex"
RECOMP: Final = "recomp"
RECOMP_TITLED: Final = "recomp_titled"

#: Peers, and what they do.
PEERS: Final[dict[str, str]] = {
    LANGCHAIN: "LangChain EmbeddingsFilter over NLTKTextSplitter, a sentence a document",
    LANGCHAIN_TITLED: "the same, the item's title (and a table's header) in front of every document",
    LANGCHAIN_CHUNKS: "LangChain EmbeddingsFilter over CharacterTextSplitter, 300 characters, as its guide shows",
    LLAMAINDEX: "LlamaIndex SentenceEmbeddingOptimizer over its own Punkt splitter",
    RECOMP: "RECOMP's extractive rule: best sentences of all items by dot product (own implementation, same encoder)",
    RECOMP_TITLED: "the same, the item's title (and a table's header) in front of every sentence",
}

_GUIDE: Final = "the documentation's example"

ARMS: Final[tuple[Arm, ...]] = (
    Arm("langchain_threshold", LANGCHAIN, "LangChain, sentences", "similarity_threshold", _THRESHOLDS),
    Arm("langchain_k", LANGCHAIN, "LangChain, sentences, as it comes", "k", (20,), 20, "the default"),
    Arm("langchain_titled", LANGCHAIN_TITLED, "LangChain, titled sentences", "similarity_threshold", _THRESHOLDS),
    Arm("langchain_chunks", LANGCHAIN_CHUNKS, "LangChain, 300-character chunks", "similarity_threshold", _THRESHOLDS),
    Arm("llamaindex_percentile", LLAMAINDEX, "LlamaIndex, percentile", "percentile_cutoff", _SHARES, 0.5, _GUIDE),
    Arm("llamaindex_threshold", LLAMAINDEX, "LlamaIndex, threshold", "threshold_cutoff", _THRESHOLDS, 0.7, _GUIDE),
    Arm("llamaindex_percentile_bare", LLAMAINDEX, "LlamaIndex, percentile, no context", "percentile_cutoff", _SHARES),
    Arm("llamaindex_threshold_bare", LLAMAINDEX, "LlamaIndex, threshold, no context", "threshold_cutoff", _THRESHOLDS),
    Arm("recomp", RECOMP, "RECOMP-style, sentences", "n", _TOTALS, 2, "RECOMP's on HotpotQA"),
    Arm("recomp_titled", RECOMP_TITLED, "RECOMP-style, titled sentences", "n", _TOTALS, 2, "RECOMP's on HotpotQA"),
)


def arms_of(peer: str) -> tuple[Arm, ...]:
    """The arms of one peer."""
    return tuple(arm for arm in ARMS if arm.peer == peer)
