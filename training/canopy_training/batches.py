"""Steps of a run: examples in an order that depends on the seed and the epoch alone, cut by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from canopy_backend.packing import row_width
from canopy_training.examples import Example

#: Share of a step's tokens that is filled, so that the rows of a step rarely spill over into one more.
_FILL: Final = 0.94
#: Examples whose sequences need rows of one width go together within a stretch of this many steps.
_STRETCH: Final = 16


def batches(examples: Sequence[Example], step_tokens: int, *, seed: int, epoch: int) -> list[list[int]]:
    """The steps of one epoch.

    Args:
        examples: All examples.
        step_tokens: Tokens of a step; an example that is larger makes a step of its own.
        seed: The run's seed.
        epoch: The epoch, from 0.

    Returns:
        Places of examples, each in one step.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(examples))
    costs = np.array([example.tokens for example in examples], np.int64)
    widths = np.array([row_width(example.longest) for example in examples], np.int64)
    stretch = np.cumsum(costs[order]) // max(1, int(_STRETCH * step_tokens * _FILL))
    steps: list[list[int]] = []
    # Stable: inside a stretch, examples of one width stay in their random order.
    filled, key = 0, None
    for place in order[np.lexsort((widths[order], stretch))].tolist():
        here = int(widths[place])
        if key != here or filled + int(costs[place]) > step_tokens * _FILL:
            steps.append([])
            filled, key = 0, here
        steps[-1].append(place)
        filled += int(costs[place])
    return [steps[place] for place in random.permutation(len(steps)).tolist()]
