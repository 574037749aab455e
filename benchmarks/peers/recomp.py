"""RECOMP's extractive rule, written again: sentences of all items of a question ranked by dot product, n of them kept.

Runs in the peers' environment. RECOMP trains its encoder for this; here it is the encoder of all peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import nltk
from sentence_transformers import util

from benchmarks.peers.arms import Arm
from benchmarks.peers.encoder import Encoder
from benchmarks.peers.mapping import Span
from benchmarks.peers.pieces import Pieces, by_item, cut_items
from benchmarks.peers.protocol import AskedItem


class Recomp:
    """The n best sentences of a question.

    Args:
        encoder: The encoder.
        titled: Whether the title stands in front of every sentence when it is encoded.
    """

    def __init__(self, encoder: Encoder, *, titled: bool = False) -> None:
        self._encoder = encoder
        self._titled = titled
        self._tokenizer = nltk.tokenize.PunktTokenizer("english")  # what nltk.sent_tokenize uses

    def cut(self, items: Sequence[AskedItem]) -> list[Pieces]:
        """NLTK's sentences."""
        return cut_items(items, self._cut)

    def encoded(self, pieces: Pieces) -> list[str]:
        """What is encoded of each sentence."""
        return pieces.titled() if self._titled else pieces.texts

    def run(self, question: str, items: Sequence[Pieces], arm: Arm, knob: float) -> tuple[list[list[int]], int]:
        """The best sentences; of equal ones the earlier."""
        texts = [text for pieces in items for text in self.encoded(pieces)]
        if not texts:
            return [[] for _ in items], 0
        products = util.dot_score(self._encoder.encode([question]), self._encoder.encode(texts))[0]
        best = products.argsort(descending=True, stable=True)[: int(knob)]
        return by_item(best.tolist(), items), 0

    def _cut(self, text: str) -> tuple[list[str], list[Span | None]]:
        spans: list[Span] = list(self._tokenizer.span_tokenize(text))
        return [text[start:end] for start, end in spans], list(spans)
