"""Which frames of a clip are taken, decided on times alone before anything is decoded.

A clip is cut into windows of 10 s, or into as many as a server takes frames. A window's frame is its first key frame,
which costs one decoded frame. A window without one is seen at its start, for which the frames from the key frame
before it have to be decoded, once for all windows that hang on that key frame.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from canopy_backend.pixels.bounds import FRAME_STEP_S


@dataclass(frozen=True, slots=True)
class Run:
    """Frames that are decoded in one go.

    Attributes:
        key: Place of the key frame to begin at.
        at_s: Times that are wanted, in order, in seconds from the clip's start.
    """

    key: int
    at_s: list[float]


#: A rest of a clip that is not longer has no frame of its own.
_REST_S: Final = 1.0


def window_starts(duration_s: float, most: int) -> list[float]:
    """Where the windows of a clip begin, in seconds: every 10 s, or ``most`` of them where those would be more."""
    count = max(1, math.ceil((duration_s - _REST_S) / FRAME_STEP_S))
    if count <= most:
        return [FRAME_STEP_S * place for place in range(count)]
    return [duration_s * place / most for place in range(most)]


def plan_runs(keys: Sequence[float], duration_s: float, most: int) -> list[Run]:
    """What to decode for the frames of a clip.

    Args:
        keys: Times of the key frames in seconds, ascending.
        duration_s: Length of the clip.
        most: Frames wanted at most.

    Returns:
        Runs in order, their times ascending throughout; none where there is no key frame.
    """
    starts = window_starts(duration_s, most)
    runs: list[Run] = []
    for start, end in zip(starts, [*starts[1:], math.inf], strict=True):
        place = bisect_left(keys, start)
        inside = place < len(keys) and keys[place] < end
        if not inside and place == 0:
            continue
        key, at_s = (place, keys[place]) if inside else (place - 1, start)
        if runs and runs[-1].key == key:
            runs[-1].at_s.append(at_s)
        else:
            runs.append(Run(key, [at_s]))
    return runs
