"""``refinement``: the last step of ``compress``, from vectors to evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canopy_backend.errors import EncoderFailure
from canopy_backend.evidence import Evidence, assemble, decisions, encode_evidence, encode_trace
from canopy_backend.items import Item, TableItem
from canopy_backend.limits import Limits
from canopy_backend.plan import RequestPlan
from canopy_backend.refinement import refine_many, score
from canopy_backend.tree import Tree
from canopy_backend.triton.artefacts import NODE_ENCODER, load_counter, load_encoder
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import COMPRESS_OPTIONS, Options
from canopy_backend.triton.tensors import Array, string_array


class RefinementModel(Model):
    """``ITEMS``, ``PLAN`` and the vectors to ``EVIDENCE``, ``REGIONS``, ``SCORES`` and ``TRACE``."""

    stage = "refinement"
    inputs = ("ITEMS", "PLAN", "QUERY_EMBEDDING", "NODE_EMBEDDINGS")
    options = COMPRESS_OPTIONS

    def load(self, setting: Setting) -> None:
        """Read the revisions that trees must have."""
        self._limits = Limits.from_parameters(setting.parameters)
        self._revision = load_encoder(setting.repository, NODE_ENCODER).manifest.revision
        self._reader = load_counter(setting.repository).revision

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Refine the items of one request."""
        query = inputs["QUERY_EMBEDDING"].reshape(-1)
        if not np.isfinite(query).all():
            raise EncoderFailure("the query encoder returned values that are not finite")
        items = read_items(inputs["ITEMS"], self._limits)
        plan = RequestPlan.from_bytes(inputs["PLAN"])
        trees = plan.trees(items, inputs["NODE_EMBEDDINGS"], revision=self._revision, reader=self._reader)
        return evidence_tensors(items, trees, query, options, tally)


def evidence_tensors(
    items: Sequence[Item], trees: Sequence[Tree], query: Array, options: Options, tally: Tally
) -> dict[str, Array]:
    """Score, refine and write out.

    Args:
        items: The request's items.
        trees: Their trees.
        query: float32 ``[D]``, unit length.
        options: The request's options.
        tally: Counts of what was done.

    Returns:
        ``EVIDENCE`` strings ``[n]``, ``REGIONS`` int32 ``[K,4]`` (item, first, last, depth), ``SCORES`` float32
        ``[K]``, ``TRACE`` strings ``[n]``, or ``[0]`` where it was not asked for.
    """
    # Item by item: one product over all of them would need memory for every node of the request at once.
    scores = [score(tree.vectors, query) for tree in trees]
    offsets = np.cumsum([0, *map(len, scores)], dtype=np.int32)
    parents = np.concatenate([tree.hierarchy.parent for tree in trees])
    whole = np.array([options.keep_tables_whole and isinstance(item, TableItem) for item in items])
    kept = refine_many(parents, offsets, np.concatenate(scores), whole)
    evidence, traces, regions = [], [], []
    for place, (item, tree) in enumerate(zip(items, trees, strict=True)):
        nodes = np.flatnonzero(kept[offsets[place] : offsets[place + 1]])
        nodes = nodes[np.argsort(tree.hierarchy.first[nodes], kind="stable")].astype(np.int32)
        one = assemble(item, tree.fragments, tree.hierarchy, nodes, scores[place], tree.tokens)
        evidence.append(encode_evidence(one))
        regions.append([(place, region.first, region.last, region.depth, region.score) for region in one.regions])
        if options.trace:
            traces.append(encode_trace(decisions(tree.hierarchy, scores[place], nodes)))
        _count(one, tally)
    tally.add("canopy_nodes_total", int(offsets[-1]))
    table = np.array([region for item_regions in regions for region in item_regions], np.float64)
    return {
        "EVIDENCE": string_array(evidence),
        "REGIONS": table[:, :4].astype(np.int32),
        "SCORES": table[:, 4].astype(np.float32),
        "TRACE": string_array(traces),
    }


def _count(evidence: Evidence, tally: Tally) -> None:
    outcome = "whole" if evidence.whole else "pruned"
    tally.add("canopy_items_total", modality=evidence.modality, outcome=outcome)
    tally.add("canopy_tokens_in_total", evidence.tokens_in)
    tally.add("canopy_tokens_kept_total", evidence.tokens_kept)
