"""``tree_writer``: the last step of ``index``, from vectors to tree blobs and retrieval vectors."""

from __future__ import annotations

from collections.abc import Mapping

from canopy_backend.limits import Limits
from canopy_backend.plan import RequestPlan
from canopy_backend.tree import encode_tree
from canopy_backend.triton.artefacts import NODE_ENCODER, load_counter, load_encoder
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import Options
from canopy_backend.triton.tensors import Array, string_array


class TreeWriterModel(Model):
    """``ITEMS``, ``PLAN`` and the vectors to ``TREES`` and ``EMBEDDINGS`` float32 ``[n,D]``."""

    stage = "tree_writer"
    inputs = ("ITEMS", "PLAN", "NODE_EMBEDDINGS", "ITEM_EMBEDDINGS")

    def load(self, setting: Setting) -> None:
        """Read the revisions that a tree names."""
        self._limits = Limits.from_parameters(setting.parameters)
        self._revision = load_encoder(setting.repository, NODE_ENCODER).manifest.revision
        self._reader = load_counter(setting.repository).revision

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Write the trees of one request."""
        items = read_items(inputs["ITEMS"], self._limits)
        plan = RequestPlan.from_bytes(inputs["PLAN"])
        trees = plan.trees(items, inputs["NODE_EMBEDDINGS"], revision=self._revision, reader=self._reader)
        return {
            "TREES": string_array([encode_tree(tree) for tree in trees]),
            "EMBEDDINGS": plan.item_vectors(items, inputs["ITEM_EMBEDDINGS"]),
        }
