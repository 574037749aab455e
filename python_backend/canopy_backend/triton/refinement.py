"""``refinement``: the last step of ``compress`` and ``compress_indexed``, from vectors to evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from canopy_backend.errors import EncoderFailure
from canopy_backend.evidence import Evidence, assemble_many, decisions, encode_evidence, encode_trace
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item, TableItem
from canopy_backend.limits import Limits
from canopy_backend.plan import RequestPlan, indexed_trees
from canopy_backend.refinement import refine_many, score_many
from canopy_backend.tree import Tree
from canopy_backend.triton.artefacts import NODE_ENCODER, load_counter, load_encoder
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import Tally
from canopy_backend.triton.model import Model, Setting
from canopy_backend.triton.options import COMPRESS_OPTIONS, Options
from canopy_backend.triton.tensors import Array, string_array
from canopy_backend.triton.waiting import ARRIVAL, longest_wait_s


class RefinementModel(Model):
    """``ITEMS``, ``PLAN`` and the vectors to ``EVIDENCE``, ``REGIONS``, ``SCORES`` and ``TRACE``.

    Without a ``PLAN`` every item must bring its tree. The parameter ``max_wait_ms`` bounds the wait since ``ARRIVAL``.
    """

    stage = "refinement"
    inputs = ("ITEMS", "QUERY_EMBEDDING")
    optional = ("PLAN", "NODE_EMBEDDINGS", ARRIVAL)
    options = COMPRESS_OPTIONS

    def load(self, setting: Setting) -> None:
        """Read the revision that trees must have, and the reader's tokenizer."""
        self.longest_wait_s = longest_wait_s(setting.parameters)
        self._limits = Limits.from_parameters(setting.parameters)
        self._revision = load_encoder(setting.repository, NODE_ENCODER).manifest.revision
        self._counter = load_counter(setting.repository)

    def answer(self, inputs: Mapping[str, Array], options: Options, tally: Tally) -> dict[str, Array]:
        """Refine the items of one request."""
        query = inputs["QUERY_EMBEDDING"].reshape(-1)
        if not np.isfinite(query).all():
            raise EncoderFailure("the query encoder returned values that are not finite")
        items = read_items(inputs["ITEMS"], self._limits)
        plan = RequestPlan.from_bytes(inputs["PLAN"]) if "PLAN" in inputs else None
        if plan is not None and plan.items:
            embeddings = inputs["NODE_EMBEDDINGS"]
            trees = plan.trees(items, embeddings, revision=self._revision, reader=self._counter.revision)
        else:
            trees = indexed_trees(
                items, revision=self._revision, dimension=len(query), counter=self._counter, limits=self._limits
            )
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
    hierarchies = [tree.hierarchy for tree in trees]
    parent = [hierarchy.parent for hierarchy in hierarchies]
    scores = score_many([tree.vectors for tree in trees], query, parent)
    offsets = np.cumsum([0, *map(len, parent)], dtype=np.int32)
    parents = np.concatenate(parent)
    whole = np.array([isinstance(item, TableItem) for item in items]) if options.keep_tables_whole else None
    kept = refine_many(parents, offsets, scores, whole)
    fragments, tokens = [tree.fragments for tree in trees], [tree.tokens for tree in trees]
    evidence, regions = assemble_many(items, fragments, hierarchies, kept, scores, tokens)
    traces = _traces(hierarchies, scores, kept, offsets) if options.trace else []
    _count(evidence, tally)
    tally.add("canopy_nodes_total", len(scores))
    rows = np.array([regions.item, regions.first, regions.last, regions.depth], np.int32)
    return {
        "EVIDENCE": string_array([encode_evidence(one) for one in evidence]),
        "REGIONS": rows.T,
        "SCORES": np.array(regions.score, np.float32),
        "TRACE": string_array(traces),
    }


def _traces(hierarchies: Sequence[Hierarchy], scores: Array, kept: Array, offsets: Array) -> list[bytes]:
    """Each item's trace as JSON."""
    traces = []
    for hierarchy, (start, end) in zip(hierarchies, pairwise(offsets.tolist()), strict=True):
        nodes = np.flatnonzero(kept[start:end])
        traces.append(encode_trace(decisions(hierarchy, scores[start:end], nodes)))
    return traces


def _count(evidence: Sequence[Evidence], tally: Tally) -> None:
    kinds = Counter((one.modality, "whole" if one.whole else "pruned") for one in evidence)
    for (modality, outcome), number in kinds.items():
        tally.add("canopy_items_total", number, modality=modality, outcome=outcome)
    tally.add("canopy_tokens_in_total", sum(one.tokens_in for one in evidence))
    tally.add("canopy_tokens_kept_total", sum(one.tokens_kept for one in evidence))
