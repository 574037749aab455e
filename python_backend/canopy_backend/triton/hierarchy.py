"""``hierarchy``: the first step of ``compress``, from query and items to the encoders' rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from canopy_backend.errors import InvalidRequest
from canopy_backend.items import bring_trees
from canopy_backend.limits import Limits
from canopy_backend.packing import PackedRows, empty_row
from canopy_backend.plan import RequestPlan, plan_request
from canopy_backend.triton.artefacts import load_counter, load_pair
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import COMPRESS_OPTIONS, Options
from canopy_backend.triton.queries import query_rows
from canopy_backend.triton.sight import PixelStep, padded_positions
from canopy_backend.triton.tensors import Array, string_list
from canopy_backend.triton.waiting import ARRIVAL


class HierarchyModel(Model):
    """``QUERY``, ``ITEMS`` to ``QUERY_IDS``, ``QUERY_MASK``, the node rows and ``PLAN``.

    With encoders that see pixels, also ``QUERY_PLACES`` and ``QUERY_FEATURES``, and vectors of items with pictures are
    in the plan. Requests that would have to be looked at are refused where ``ARRIVAL`` is longer ago than
    ``max_wait_ms``.
    """

    stage = "hierarchy"
    inputs = ("QUERY", "ITEMS")
    optional = (ARRIVAL,)
    options = COMPRESS_OPTIONS

    def load(self, setting: Setting) -> None:
        """Load both encoders' tokenizers and the reader's."""
        self._limits = Limits.from_parameters(setting.parameters)
        self._query, self._node = load_pair(setting.repository)
        self._counter = load_counter(setting.repository)
        self._pixels = PixelStep(setting, self._node, self._limits)
        none = np.zeros(0, np.int32)
        nothing = RequestPlan([], none, none, self._node.manifest.node_encoding)
        self._nothing = {**self._rows(empty_row()), "PLAN": plan_tensor(nothing)}

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Plan one request."""
        queries = string_list(inputs["QUERY"])
        if len(queries) != 1:
            raise InvalidRequest(f"QUERY must hold one query, not {len(queries)}")
        ids, mask = query_rows(queries, self._query.tokenizer, self._limits)
        query = self._pixels.with_places({"QUERY_IDS": ids, "QUERY_MASK": mask}, padded_positions(mask), "QUERY_")
        if bring_trees(string_list(inputs["ITEMS"])):
            # The last step reads the items and their trees; here nothing depends on what they hold.
            return {**query, **self._nothing}
        items = read_items(inputs["ITEMS"], self._limits)
        rows, plan = plan_request(
            items,
            tokenizer=self._node.tokenizer,
            counter=self._counter,
            revision=self._node.manifest.revision,
            limits=self._limits,
            node_encoding=self._node.manifest.node_encoding,
            see=self._pixels.see(self.waited_s, self.until, self.request_id),
        )
        return {**query, **self._rows(rows), "PLAN": plan_tensor(plan)}

    def _rows(self, rows: PackedRows) -> dict[str, Array]:
        return self._pixels.with_places(row_tensors(rows), rows.position_ids, "NODE_")


def row_tensors(rows: PackedRows) -> dict[str, Array]:
    """Packed rows as the node encoder's four inputs, int64 ``[R,L]``."""
    return {
        "NODE_IDS": rows.input_ids,
        "NODE_SEGMENTS": rows.segment_ids,
        "NODE_POSITIONS": rows.position_ids,
        "NODE_SLOTS": rows.slot_ids,
    }


def plan_tensor(plan: RequestPlan) -> Array:
    """A plan as uint8 ``[n]``."""
    return np.frombuffer(plan.to_bytes(), np.uint8)
