"""``planner``: the first step of ``index``, from items to node rows and whole items' windows."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from canopy_backend.encoding import plan_items
from canopy_backend.items import has_pictures
from canopy_backend.limits import Limits
from canopy_backend.plan import plan_request
from canopy_backend.tokenization import pad
from canopy_backend.triton.artefacts import load_counter, load_pair
from canopy_backend.triton.hierarchy import plan_tensor, row_tensors
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import Options
from canopy_backend.triton.sight import PixelStep, padded_positions
from canopy_backend.triton.tensors import Array
from canopy_backend.triton.waiting import ARRIVAL


class PlannerModel(Model):
    """``ITEMS`` to the node rows, ``ITEM_IDS``, ``ITEM_MASK`` int64 ``[W,L]`` and ``PLAN``.

    With encoders that see pixels, also ``ITEM_PLACES`` and ``ITEM_FEATURES``, and vectors of items with pictures are in
    the plan. Requests that would have to be looked at are refused where ``ARRIVAL`` is longer ago than ``max_wait_ms``.
    """

    stage = "planner"
    inputs = ("ITEMS",)
    optional = (ARRIVAL,)

    def load(self, setting: Setting) -> None:
        """Load both encoders' tokenizers and the reader's."""
        self._limits = Limits.from_parameters(setting.parameters)
        self._node = load_pair(setting.repository)[1]
        self._counter = load_counter(setting.repository)
        self._pixels = PixelStep(setting, self._node, self._limits, whole=True)

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Plan one request."""
        items = read_items(inputs["ITEMS"], self._limits)
        if self._pixels.sees:
            # Whole items with pixels are encoded together with their nodes, so a tree would save nothing.
            items = [msgspec.structs.replace(item, tree=None) if has_pictures(item) else item for item in items]
        rows, plan = plan_request(
            items,
            tokenizer=self._node.tokenizer,
            counter=self._counter,
            revision=self._node.manifest.revision,
            limits=self._limits,
            node_encoding=self._node.manifest.node_encoding,
            see=self._pixels.see(self.waited_s, self.until, self.request_id),
        )
        # Whole items are encoded by the query encoder's model, but as documents: a chat's turns tell the two apart.
        windows = plan_items(items, self._node.tokenizer, plan.seen_places)
        largest = int(windows.counts.argmax())
        what = f"item {largest} ({items[largest].id!r:.80}): windows"
        self._limits.check("max_rows", int(windows.counts[largest]), what)
        self._limits.check("max_rows", len(windows.sequences), "windows of the items")
        ids, mask = pad(windows.sequences)
        if not len(ids):  # a step may not receive zero rows
            ids = mask = np.zeros((1, ids.shape[1]), np.int64)
        whole = {"ITEM_IDS": ids, "ITEM_MASK": mask}
        return {
            **self._pixels.with_places(row_tensors(rows), rows.position_ids, "NODE_"),
            **self._pixels.with_places(whole, padded_positions(mask), "ITEM_"),
            "PLAN": plan_tensor(plan.with_windows(windows)),
        }
