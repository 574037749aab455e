"""Token ids for the encoders, and token counts for the reader."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from canopy_backend.errors import ExportError

#: Row lengths of padded input, in tokens; few, so that the server's batcher finds rows of one shape.
BUCKETS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048)

TokenIds = list[int]
Int64Array = npt.NDArray[np.int64]

# The library splits a batch over threads, one a core, and warns on standard error if the process forks later. A choice
# made by the operator stands; without one, say what the library does by itself, which also silences that warning.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer from its ``tokenizer.json``, without the padding and truncation that the file may ask for.

    Raises:
        ExportError: The file is missing or is not a tokenizer.
    """
    if not Path(path).is_file():
        raise ExportError(f"tokenizer {str(path)!r}: no such file; run the export")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ExportError(f"tokenizer {str(path)!r}: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def pad(sequences: Sequence[Sequence[int]], buckets: Sequence[int] = BUCKETS) -> tuple[Int64Array, Int64Array]:
    """Put sequences into one rectangle as wide as the smallest bucket that holds the longest.

    Args:
        sequences: N token sequences.
        buckets: Allowed widths, ascending.

    Returns:
        ids and mask, int64 ``[N, L]``. Padding is id 0 under mask 0; the encoder never sees it.

    Raises:
        ValueError: A sequence is longer than the last bucket.
    """
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    longest = int(lengths.max(initial=0))
    width = next((bucket for bucket in buckets if bucket >= longest), None)
    if width is None:
        raise ValueError(f"a sequence of {longest} tokens is longer than the largest bucket, {max(buckets)}")
    filled = np.arange(width) < lengths[:, None]
    ids = np.zeros(filled.shape, np.int64)
    ids[filled] = np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum()))
    return ids, filled.astype(np.int64)


class EncoderTokenizer:
    """The tokenizer of an encoder.

    Args:
        path: ``tokenizer.json``.
        window: Most tokens that the encoder reads at once, special tokens included.

    Attributes:
        window: The same.
        head: Special tokens before a text.
        tail: Special tokens after it.
        room: Tokens of text that fit beside the special ones.
        splits_at_space: Whether the tokens of two texts with white space between them are always the tokens of the
            one and then those of the other. True where the library's parts are known to work that way.

    Raises:
        ExportError: The file cannot be used, or the window has no room for text.
    """

    def __init__(self, path: str | Path, window: int) -> None:
        self._tokenizer = load_tokenizer(path)
        self.window = window
        probe = self._tokenizer.encode("a")
        text = [place for place, special in enumerate(probe.special_tokens_mask) if not special] or [len(probe.ids)]
        self.head: TokenIds = probe.ids[: text[0]]
        self.tail: TokenIds = probe.ids[text[-1] + 1 :]
        self.room = window - len(self.head) - len(self.tail)
        if self.room < 1:
            raise ExportError(f"tokenizer {str(path)!r}: a window of {window} tokens has no room for text")
        self.splits_at_space = _splits_at_space(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text, special tokens included, however long it is."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def encode_plain(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def windows(self, ids: Sequence[int], prefix: Sequence[int] = ()) -> list[TokenIds]:
        """Cut a text that is longer than the window into windows that together hold all of it.

        Args:
            ids: Tokens of the text, without special tokens.
            prefix: Tokens that every window starts with. One longer than half the room is not repeated: it becomes
                part of the text, so that the number of windows stays in proportion to the text.

        Returns:
            At least one sequence, each with special tokens and no longer than the window.
        """
        if not self.repeats(prefix):
            ids, prefix = [*prefix, *ids], ()
        step = self.room - len(prefix)
        starts = range(0, max(1, len(ids)), step)
        return [[*self.head, *prefix, *ids[start : start + step], *self.tail] for start in starts]

    def repeats(self, prefix: Sequence[int]) -> bool:
        """Whether :meth:`windows` starts every window with this prefix."""
        return len(prefix) <= self.room // 2

    pad = staticmethod(pad)


def _splits_at_space(tokenizer: Tokenizer) -> bool:
    """Whether tokens never depend on what stands behind white space.

    BERT's parts are such: normalisation works on single characters (decomposing accents reorders marks, but not
    across a space), words are cut at white space, and WordPiece looks at one word. Added tokens are matched in the
    raw text before that, so they must not take in the space around them.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        isinstance(tokenizer.normalizer, BertNormalizer)
        and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
        and isinstance(tokenizer.model, WordPiece)
        and not any(
            token.lstrip or token.rstrip or token.single_word or any(map(str.isspace, token.content)) for token in added
        )
    )


class TokenCounter:
    """Counts tokens as the reader does.

    Args:
        path: The reader's ``tokenizer.json``.
        name: What to call it in replies; the name of the file's folder where not given.

    Attributes:
        name: The same.
        revision: Eight bytes that change when the file does.

    Raises:
        ExportError: The file cannot be used.
    """

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self._tokenizer = load_tokenizer(path)
        self.name = name or Path(path).resolve().parent.name
        self.revision = hashlib.sha256(Path(path).read_bytes()).digest()[:8]

    def count(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        """Tokens of each text, without special tokens, int32 ``[n]``."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return np.fromiter(map(len, encodings), np.int32, len(encodings))
