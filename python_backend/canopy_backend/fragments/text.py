"""Sentence spans of a text."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import sentencex

from canopy_backend.fragments.types import Spans


def text_spans(text: str) -> Spans:
    """Sentences of a text as int32 ``[F, 2]`` spans in code points; they join back to the text."""
    ends = list(accumulate(len(part) for part in sentencex.segment("en", text))) or [0]
    return np.array(list(zip([0, *ends[:-1]], ends, strict=True)), np.int32)
