"""The vision tower over one item: what several of its nodes show alike is looked at once.

Attention in the tower is within a frame, and positions count rows and columns alone, so what it makes of frames that
share patches depends on their pixels and their size: not on the node that shows them, nor on the clip's other frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from canopy_backend.packing import runs
from canopy_backend.qwen3vl.grids import grid_inputs
from canopy_backend.qwen3vl.nodes import Look, Shown
from canopy_backend.qwen3vl.serving import MAPS
from canopy_backend.qwen3vl.settings import VisionSettings

#: Most patches of one call of the vision tower, whose attention grows with their square; one larger frame stands alone.
MAX_PATCHES: Final = 4096
#: Most visual tokens whose features are kept for later nodes; those of a clip that was cut where items are made fit.
KEPT_TOKENS: Final = 8192

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float32]
#: A graph: inputs by name to its outputs in order.
Run: TypeAlias = Callable[[Mapping[str, Array]], Sequence[Array]]


class Tower:
    """Looks at the pixels of one item.

    Args:
        run: The graph: ``visual`` and ``deepstack``.
        settings: The model's.
        looks: All of the item's, in the order in which their features will be asked for.
    """

    def __init__(self, run: Run, settings: VisionSettings, looks: Sequence[Look | None]) -> None:
        self._run = run
        self._settings = settings
        self._left = Counter(shown for look in looks if look is not None for shown in look.shown)
        self._kept: dict[Shown, FloatArray] = {}

    def features(self, looks: Sequence[Look | None]) -> list[FloatArray]:
        """Features float32 ``[4, v, H]`` of the next looks; of none, v is 0."""
        wanted = {shown: look for look in looks if look is not None for shown in look.shown}
        found = self._kept | self._seen({shown: look for shown, look in wanted.items() if shown not in self._kept})
        nothing = np.zeros((MAPS, 0, self._settings.hidden), np.float32)
        answer = [
            nothing if look is None else np.concatenate([found[shown] for shown in look.shown], axis=1)
            for look in looks
        ]
        self._left.subtract(shown for look in looks if look is not None for shown in look.shown)
        self._keep(found)
        return answer

    def _seen(self, wanted: Mapping[Shown, Look]) -> dict[Shown, FloatArray]:
        """Features of what was not kept, a bounded number of patches a call."""
        every = list(wanted)
        found: dict[Shown, FloatArray] = {}
        for first, last in runs([shown.patches for shown in every], MAX_PATCHES):
            part = every[first:last]
            inputs = grid_inputs([(1, shown.height, shown.width) for shown in part], self._settings)
            visual, deepstack = self._run(
                {
                    "patches": np.concatenate([wanted[shown].patches(shown) for shown in part]),
                    "pos_idx": inputs.pos_idx,
                    "pos_w": inputs.pos_w,
                    "pos_ids": inputs.pos_ids,
                    "seg": inputs.seg,
                }
            )
            edges = np.cumsum([self._tokens(shown) for shown in part])[:-1].tolist()
            features = np.split(np.concatenate([visual[None], deepstack]), edges, axis=1)
            found |= dict(zip(part, features, strict=True))
        return found

    def _keep(self, found: Mapping[Shown, FloatArray]) -> None:
        """Keep what later nodes show again, as far as there is room for it."""
        kept: dict[Shown, FloatArray] = {}
        room = KEPT_TOKENS
        for shown, features in found.items():
            if self._left[shown] > 0 and features.shape[1] <= room:
                # A part of a call's answer would hold on to all of it.
                kept[shown] = features if shown in self._kept else features.copy()
                room -= features.shape[1]
        self._kept = kept

    def _tokens(self, shown: Shown) -> int:
        return shown.patches // self._settings.merge**2
