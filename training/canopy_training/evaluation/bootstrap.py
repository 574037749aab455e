"""Paired bootstrap over questions: how far a figure, or the difference of two systems, may be off by chance.

A figure is the sum of one column over the sum of another, a row a question. Every resample draws as many questions as
there are, with replacement; the same draws serve every figure and every system, which is what makes differences paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

#: Resamples of the method's intervals.
RESAMPLES: Final = 10_000
#: Weights that are in memory together, resamples times questions.
_CHUNK: Final = 2_000_000

Float64Array = npt.NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its 95 % interval.

    Attributes:
        value: The figure itself; ``None`` where nothing was there to count.
        low: Lower end of the interval.
        high: Upper end.
    """

    value: float | None
    low: float | None
    high: float | None


def draws(n: int, resamples: int, seed: int) -> Iterator[Float64Array]:
    """How often each of ``n`` questions is drawn, float64 ``[chunk, n]``, ``resamples`` rows in all."""
    generator = np.random.default_rng(seed)
    step = max(1, _CHUNK // max(1, n))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = generator.integers(0, n, (rows, n)) + np.arange(rows)[:, None] * n
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def resample(
    over: Float64Array, under: Float64Array, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Float64Array, Float64Array]:
    """Figures of all questions and of each resample.

    Args:
        over: float64 ``[n, k]``, the upper parts of k figures for each question.
        under: float64 ``[n, k]``, the lower parts.
        resamples: B.
        seed: Of the draws.

    Returns:
        float64 ``[k]`` and ``[B, k]``; NaN where the lower part is 0.
    """
    if not len(over):
        return np.full(over.shape[1], np.nan), np.full((resamples, over.shape[1]), np.nan)
    both = np.concatenate([over, under], axis=1)
    k = over.shape[1]
    sums = np.concatenate([weights @ both for weights in draws(len(over), resamples, seed)])
    return _ratio(over.sum(axis=0), under.sum(axis=0)), _ratio(sums[:, :k], sums[:, k:])


def estimates(values: Float64Array, samples: Float64Array) -> list[Estimate]:
    """Figures ``[k]`` with the 95 % interval of their resamples ``[B, k]``; resamples without a value do not count."""
    found = []
    for at, value in enumerate(values.tolist()):
        usable = samples[np.isfinite(samples[:, at]), at]
        if not np.isfinite(value) or not len(usable):
            found.append(Estimate(value=None, low=None, high=None))
        else:
            low, high = np.percentile(usable, (2.5, 97.5)).tolist()
            found.append(Estimate(value=value, low=low, high=high))
    return found


def _ratio(over: Float64Array, under: Float64Array) -> Float64Array:
    result = np.full(over.shape, np.nan)
    np.divide(over, under, out=result, where=under > 0)
    return result
