"""Settings of a training run, which its manifest repeats."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from canopy_backend.manifest import NodeEncoding

Precision = Literal["auto", "fp32", "bf16"]


class TrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the result of a run, beside the base model and the data.

    The loss scale is the paper's. Rank and learning rate are larger than its 8 and 5e-5, as a small encoder has fewer
    weights to adapt; ``python -m benchmarks.ablations`` has ranks, scales and weights side by side.

    Attributes:
        node_encoding: ``separate`` or ``contextual``.
        rank: Rank of the LoRA matrices.
        alpha: Their scale; the update is multiplied by ``alpha / rank``.
        dropout: Dropout in front of them.
        learning_rate: Peak of the schedule: a short linear rise, then a cosine to zero.
        warmup: Share of the steps that the rise takes.
        weight_decay: Of AdamW.
        clip: Largest norm of the gradient.
        scale: Lambda of the loss.
        gold_weight: Weight of the pairs that put a child with gold above its parent; the paper's is 1. More of it keeps
            more gold and more tokens.
        epochs: Passes over the training examples.
        step_tokens: Tokens of one step on one process.
        branching: Branching of the hierarchies.
        dev_instances: About how many instances of dev are scored at each check.
        check_every: Steps between two checks, which also save the run's state; a run always ends with one.
        precision: Arithmetic of the forward pass; ``auto`` takes bfloat16 where the hardware has it.
        seed: Of data order, initialisation and dropout.
    """

    node_encoding: NodeEncoding = "separate"
    rank: Annotated[int, Meta(ge=1, le=1024)] = 16
    alpha: Annotated[float, Meta(gt=0)] = 32.0
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    learning_rate: Annotated[float, Meta(gt=0)] = 1e-3
    warmup: Annotated[float, Meta(ge=0, lt=1)] = 0.06
    weight_decay: Annotated[float, Meta(ge=0)] = 0.01
    clip: Annotated[float, Meta(gt=0)] = 1.0
    scale: Annotated[float, Meta(gt=0)] = 20.0
    gold_weight: Annotated[float, Meta(gt=0)] = 1.0
    epochs: Annotated[int, Meta(ge=1, le=1000)] = 3
    step_tokens: Annotated[int, Meta(ge=256)] = 4096
    branching: Annotated[int, Meta(ge=2, le=64)] = 2
    dev_instances: Annotated[int, Meta(ge=0)] = 800
    check_every: Annotated[int, Meta(ge=1)] = 200
    precision: Precision = "auto"
    seed: int = 0
