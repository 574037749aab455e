"""The encoder that all peers share, in the peers' environment: sentence-transformers, with a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from transformers.utils.logging import disable_progress_bar

#: Vectors that are remembered, about 0.2 GB.
_REMEMBERED: Final = 100_000

Vectors = npt.NDArray[np.float32]


class Encoder:
    """A sentence-transformers model that encodes a text once, until it is told to forget.

    A sweep asks for the same vectors at each setting, and many peers for the same sentences; times are taken with
    nothing remembered.

    Args:
        folder: The model.
        threads: Threads of the encoder.
        remember: Whether it has a memory; without one every text is encoded every time.
    """

    def __init__(self, folder: str, threads: int = 1, *, remember: bool = True) -> None:
        torch.set_num_threads(threads)
        self._remember = remember
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model = SentenceTransformer(folder, device="cpu", local_files_only=True)
        self._known: dict[str, Vectors] = {}

    def forget(self) -> None:
        """Forget all vectors."""
        self._known.clear()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Float32 ``[n, D]``, as the model gives them; all-MiniLM-L6-v2 gives unit vectors."""
        if texts and not self._remember:
            found: Vectors = self._model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
            return found
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
                new = list(dict.fromkeys(texts))
            vectors = self._model.encode(new, show_progress_bar=False, convert_to_numpy=True)
            self._known.update(zip(new, vectors, strict=True))
        if not texts:
            return np.zeros((0, 0), np.float32)
        return np.stack([self._known[text] for text in texts])

    def cut(self, texts: Sequence[str]) -> int:
        """How many texts are longer than the window, which cuts them off."""
        window = int(self._model.max_seq_length or 0)
        # A token is a character at least.
        long = [text for text in texts if len(text) > window - 2]
        if not window or not long:
            return 0
        ids = self._model.tokenizer(long, truncation=False, verbose=False)["input_ids"]
        return sum(len(sequence) > window for sequence in ids)
