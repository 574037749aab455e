"""What becomes of a figure as something grows: sizes, or time. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

#: Smallest step between two sizes that counts, in doublings; texts of twice the sentences have about twice the tokens.
LEAST_STEP: Final = 0.8
#: Share of a run that is warm-up, from its beginning.
WARM_UP: Final = 0.2


class Drift(msgspec.Struct, frozen=True):
    """How a figure moved after warm-up.

    Attributes:
        first: Its median over the first tenth of what follows the warm-up.
        last: Its median over the last tenth.
        per_1000: Slope of a straight line through it, per thousand requests.
    """

    first: float
    last: float
    per_1000: float

    @property
    def change(self) -> float:
        """From first to last."""
        return self.last - self.first


def doublings(sizes: Sequence[float], times: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """What each doubling of a size does to time.

    Args:
        sizes: Ascending, more than 0.
        times: Of each size, one a round; a round measures neighbours one after another.

    Returns:
        For each size that is about twice the one before it or more, that size and the factor for one doubling, the
        median of the rounds: a step by the factor f counts as log2 f doublings.
    """
    found = []
    for place in range(1, len(sizes)):
        steps = np.log2(sizes[place] / sizes[place - 1])
        if steps >= LEAST_STEP:
            factors = np.divide(times[place], times[place - 1])
            found.append((float(sizes[place]), float(np.median(factors) ** (1 / steps))))
    return found


def worst_doubling(sizes: Sequence[float], times: Sequence[Sequence[float]]) -> float:
    """The largest factor of :func:`doublings`; 1 without any."""
    return max((factor for _, factor in doublings(sizes, times)), default=1.0)


def drift(requests: Sequence[int], values: Sequence[float]) -> Drift:
    """How a figure moved after the first :data:`WARM_UP` of the requests.

    Args:
        requests: Requests answered at each sample, ascending.
        values: The figure at each sample; at least one.
    """
    x, y = np.asarray(requests, np.float64), np.asarray(values, np.float64)
    after = x >= WARM_UP * x.max(initial=0.0)
    x, y = x[after], y[after]
    tenth = max(1, len(y) // 10)
    spread = np.ptp(x) if len(x) else 0.0
    slope = float(np.polyfit(x, y, 1)[0]) if len(x) > 2 and spread > 0 else 0.0
    return Drift(float(np.median(y[:tenth])), float(np.median(y[-tenth:])), 1000 * slope)
