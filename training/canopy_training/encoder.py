"""The node encoder while it learns: the graph that is exported, under gradients, and the pooling of nodes in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from canopy_backend.packing import pack, row_width
from canopy_training.examples import Example


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Examples of one step as tensors.

    Attributes:
        rows: ``input_ids``, ``segment_ids``, ``position_ids``, ``slot_ids`` of the node graph, int64 ``[R, L]``.
        slots: int64 ``[P, 2]``, row and slot of each part.
        terms: int64 ``[T, 2]``, node and part.
        weights: float32 ``[T]``.
        folds: Parents, children (int64 ``[C]``) and the children's tokens (float32 ``[C]``), to be done in this order.
        question: int64 ``[N]``, the question of each node.
        pairs: int64 ``[K, 2]``, nodes a above b.
        owner: int64 ``[K]``, the instance of each pair.
        enters: bool ``[K]``, pairs that hold at equal scores.
        n_instances: Instances.
        unit_parts: Whether parts are brought to unit length before they are pooled (``separate``).
    """

    rows: tuple[Tensor, Tensor, Tensor, Tensor]
    slots: Tensor
    terms: Tensor
    weights: Tensor
    folds: list[tuple[Tensor, Tensor, Tensor]]
    question: Tensor
    pairs: Tensor
    owner: Tensor
    enters: Tensor
    n_instances: int
    unit_parts: bool

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("slots", "terms", "weights", "question", "pairs", "owner", "enters")
        }
        ids, segments, positions, slot_ids = (rows.to(device) for rows in self.rows)
        folds = [(a.to(device), b.to(device), c.to(device)) for a, b, c in self.folds]
        return Batch(
            rows=(ids, segments, positions, slot_ids),
            folds=folds,
            n_instances=self.n_instances,
            unit_parts=self.unit_parts,
            **moved,
        )


def collate(examples: Sequence[Example], rows_multiple: int = 4) -> Batch:
    """Put examples into one batch.

    Args:
        examples: Examples of one node encoding.
        rows_multiple: The number of rows is brought to a multiple of this by rows of padding, so that few shapes
            occur: on a CPU every new shape costs time and memory.
    """
    sequences = [sequence for example in examples for sequence in example.sequences]
    layouts = [layout for example in examples for layout in example.layouts or ()] or None
    packed = pack(sequences, row_width(max(example.longest for example in examples)), layouts)
    missing = -len(packed.input_ids) % rows_multiple
    ids, segments, positions, slot_ids = (
        torch.from_numpy(np.pad(rows, ((0, missing), (0, 0))))
        for rows in (packed.input_ids, packed.segment_ids, packed.position_ids, packed.slot_ids)
    )
    nodes = np.cumsum([0, *(example.n_nodes for example in examples)])
    parts = np.cumsum([0, *(example.n_parts for example in examples)])
    owners = np.cumsum([0, *(example.n_instances for example in examples)])
    depth = max((len(example.folds) for example in examples), default=0)
    folds = []
    for level in range(depth):
        # Aligned at the end: every example's last fold is its shallowest.
        ready = [
            (example.folds[level - depth + len(example.folds)], start)
            for example, start in zip(examples, nodes.tolist(), strict=False)
            if level - depth + len(example.folds) >= 0
        ]
        folds.append(
            (
                torch.from_numpy(np.concatenate([fold.parents + start for fold, start in ready])),
                torch.from_numpy(np.concatenate([fold.children + start for fold, start in ready])),
                torch.from_numpy(np.concatenate([fold.mass for fold, _ in ready])),
            )
        )
    places = list(zip(examples, nodes.tolist(), parts.tolist(), owners.tolist(), strict=False))
    terms = [example.terms + np.array([node, part]) for example, node, part, _ in places]
    return Batch(
        rows=(ids, segments, positions, slot_ids),
        slots=torch.from_numpy(packed.slots.astype(np.int64)),
        terms=torch.from_numpy(np.concatenate(terms)),
        weights=torch.from_numpy(np.concatenate([example.weights for example in examples])),
        folds=folds,
        question=torch.from_numpy(np.repeat([e.question for e in examples], [e.n_nodes for e in examples])),
        pairs=torch.from_numpy(np.concatenate([example.pairs + start for example, start, _, _ in places])),
        owner=torch.from_numpy(np.concatenate([example.owner + first for example, _, _, first in places])),
        enters=torch.from_numpy(np.concatenate([example.enters for example in examples])),
        n_instances=int(owners[-1]),
        unit_parts=layouts is None,
    )


def node_scores(graph: nn.Module, batch: Batch, queries: Tensor) -> Tensor:
    """Cosine of every node of a batch with its own question.

    Args:
        graph: The node graph, :class:`canopy_export.graphs.NodeGraph`.
        batch: The batch.
        queries: float32 ``[Q, D]``, unit vectors of all questions.

    Returns:
        float32 ``[N]``, with gradients where they are on.
    """
    embeddings: Tensor = graph(*batch.rows)
    parts = embeddings[batch.slots[:, 0], batch.slots[:, 1]].float()
    if batch.unit_parts:
        parts = functional.normalize(parts, dim=1)
    node, part = batch.terms.T
    vectors = torch.zeros(len(batch.question), parts.shape[1], device=parts.device)
    vectors = vectors.index_add(0, node, parts[part] * batch.weights[:, None])
    vectors = functional.normalize(vectors, dim=1)
    for parents, children, mass in batch.folds:
        pooled = torch.zeros_like(vectors).index_add(0, parents, vectors[children] * mass[:, None])
        filled = torch.zeros(len(vectors), 1, device=vectors.device).index_fill(0, parents, 1.0)
        vectors = vectors * (1 - filled) + functional.normalize(pooled, dim=1) * filled
    return (vectors * queries[batch.question]).sum(1)


def decided(batch: Batch, scores: Tensor) -> Tensor:
    """Which instances are decided rightly, bool ``[n_instances]``; as :func:`canopy_training.instances.correct`."""
    above, below = scores[batch.pairs[:, 0]], scores[batch.pairs[:, 1]]
    wrong = ~torch.where(batch.enters, above >= below, above > below)
    errors = torch.zeros(batch.n_instances, device=scores.device).index_add(0, batch.owner, wrong.float())
    return errors == 0
