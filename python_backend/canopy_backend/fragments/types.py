"""The one type that every modality's fragments share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Unit: TypeAlias = Literal["text", "table", "video", "image"]
Spans: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """Where the fragments of one item are.

    Attributes:
        unit: What spans count: ``text`` code points, ``table`` rows, ``video`` milliseconds, ``image`` one unit.
        spans: int32 ``[F, 2]``, half-open ``[start, end)`` in source order, each starting where the last one ends.
    """

    unit: Unit
    spans: Spans

    def __len__(self) -> int:
        return len(self.spans)
