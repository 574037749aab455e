"""``arrival``: goes before the first step of ``index`` where that looks at pictures, and says when a request came."""

from __future__ import annotations

from collections.abc import Mapping

from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import Options
from canopy_backend.triton.tensors import Array
from canopy_backend.triton.waiting import ARRIVAL, arrival


class ArrivalModel(Model):
    """``ITEMS`` to ``ARRIVAL``; a step has to have an input, and items are all that ``index`` is given."""

    stage = "arrival"
    inputs = ("ITEMS",)

    def load(self, setting: Setting) -> None:
        """Nothing is needed."""

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Look at the clock."""
        return {ARRIVAL: arrival()}
