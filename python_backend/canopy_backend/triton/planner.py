"""``planner``: the first step of ``index``, from items to node rows and whole items' windows."""

from __future__ import annotations

from collections.abc import Mapping

from canopy_backend.encoding import plan_items
from canopy_backend.limits import Limits
from canopy_backend.plan import plan_request
from canopy_backend.tokenization import pad
from canopy_backend.triton.artefacts import load_counter, load_pair
from canopy_backend.triton.hierarchy import plan_tensor, row_tensors
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import Options
from canopy_backend.triton.tensors import Array


class PlannerModel(Model):
    """``ITEMS`` to the node rows, ``ITEM_IDS``, ``ITEM_MASK`` int64 ``[W,L]`` and ``PLAN``."""

    stage = "planner"
    inputs = ("ITEMS",)

    def load(self, setting: Setting) -> None:
        """Load both encoders' tokenizers and the reader's."""
        self._limits = Limits.from_parameters(setting.parameters)
        self._node = load_pair(setting.repository)[1]
        self._counter = load_counter(setting.repository)

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Plan one request."""
        items = read_items(inputs["ITEMS"], self._limits)
        rows, plan = plan_request(
            items,
            tokenizer=self._node.tokenizer,
            counter=self._counter,
            revision=self._node.manifest.revision,
            limits=self._limits,
            node_encoding=self._node.manifest.node_encoding,
        )
        # Whole items are encoded by the query encoder's model, but as documents: a chat's turns tell the two apart.
        windows = plan_items(items, self._node.tokenizer)
        largest = int(windows.counts.argmax())
        what = f"item {largest} ({items[largest].id!r:.80}): windows"
        self._limits.check("max_rows", int(windows.counts[largest]), what)
        self._limits.check("max_rows", len(windows.sequences), "windows of the items")
        ids, mask = pad(windows.sequences)
        return {
            **row_tensors(rows),
            "ITEM_IDS": ids,
            "ITEM_MASK": mask,
            "PLAN": plan_tensor(plan.with_windows(windows)),
        }
