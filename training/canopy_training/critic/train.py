"""Fitting the critic: stories in batches, a rising and falling rate, a state on disk to go on from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import torch
from msgspec import Meta

from canopy_backend.errors import TrainingError
from canopy_training.checkpoint import State, load_state, random_state, restore_random, save_state
from canopy_training.critic.model import ChatModel
from canopy_training.critic.samples import Sample

#: Steps over which the shown loss is a mean.
_SHOWN: Final = 10


class CriticSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the result of a run, beside the model and the data.

    Attributes:
        rank: Rank of the LoRA matrices.
        alpha: Their scale; the update is multiplied by ``alpha / rank``.
        first_layer: First layer with matrices, from 0; those below stay as they are and cost no gradients.
        learning_rate: Peak of the schedule: a short linear rise, then a cosine to zero.
        warmup: Share of the steps that the rise takes.
        weight_decay: Of AdamW.
        clip: Largest norm of the gradient.
        passes: Stories that are made of each question, each another.
        stories: Most stories, the first of their order; 0 for all.
        table_questions: Questions about tables that the classifier learns from, at most.
        batch: Stories of one step.
        max_tokens: Longest story; longer ones are left out and counted.
        check_every: Steps between two savings of the run's state.
        seed: Of the stories, their order and the first matrices.
    """

    rank: Annotated[int, Meta(ge=1, le=256)] = 16
    alpha: Annotated[float, Meta(gt=0)] = 32.0
    first_layer: Annotated[int, Meta(ge=0)] = 10
    learning_rate: Annotated[float, Meta(gt=0)] = 1e-3
    warmup: Annotated[float, Meta(ge=0, lt=1)] = 0.06
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    clip: Annotated[float, Meta(gt=0)] = 1.0
    passes: Annotated[int, Meta(ge=1, le=100)] = 1
    stories: Annotated[int, Meta(ge=0)] = 0
    table_questions: Annotated[int, Meta(ge=0)] = 80
    batch: Annotated[int, Meta(ge=1, le=1024)] = 4
    max_tokens: Annotated[int, Meta(ge=256)] = 2300
    check_every: Annotated[int, Meta(ge=1)] = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: steps done and in all, mean loss of the last steps, tokens read so far."""

    step: int
    steps: int
    loss: float
    tokens: int


@dataclass(slots=True)
class Fitted:
    """What a run leaves.

    Attributes:
        history: ``step`` and ``loss``, the mean since the line before.
        steps: Steps of the run.
        stories: Stories that were learned from.
        oversized: Stories that were longer than a story may be.
        tokens: Tokens of all stories.
        learned: Tokens of all answers.
        seconds: Time spent, over all sittings.
    """

    history: list[dict[str, float]]
    steps: int
    stories: int
    oversized: int
    tokens: int
    learned: int
    seconds: float


def fit(
    model: ChatModel,
    settings: CriticSettings,
    stories: Sequence[Sequence[Sample]],
    *,
    state_folder: Path | None = None,
    fingerprint: str = "",
    report: Callable[[Progress], None] = lambda _: None,
) -> Fitted:
    """Fit a model's LoRA matrices to the answers of stories.

    Each token of an answer counts the same within its step.

    Args:
        model: The model; its matrices change.
        settings: How.
        stories: Samples that begin alike, in groups.
        state_folder: Where the run's state is kept and from which it goes on.
        fingerprint: Names the run; a state of another one is refused.
        report: Called after every step.

    Raises:
        TrainingError: There is nothing to learn from, the loss is not finite, or the state cannot be used.
    """
    packs = [model.pack(story) for story in stories[: settings.stories or None]]
    fitting = [one for one in packs if len(one.ids) <= settings.max_tokens]
    if not fitting:
        raise TrainingError(f"no story of at most {settings.max_tokens} tokens to learn from")
    batches = [fitting[at : at + settings.batch] for at in range(0, len(fitting), settings.batch)]
    optimizer: Any = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    step, seconds, history, recent = 0, 0.0, list[dict[str, float]](), list[float]()
    state = load_state(state_folder, fingerprint) if state_folder is not None else None
    if state is not None:
        model.restore(state.weights)
        optimizer.load_state_dict(state.optimizer)
        restore_random(state.random)
        step, history, seconds = state.step, state.history, state.seconds
    started = time.monotonic() - seconds
    while step < len(batches):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, len(batches), settings.warmup)
        recent.append(_advance(model, optimizer, batches[step], settings.clip, step))
        step += 1
        seconds = time.monotonic() - started
        if step % settings.check_every == 0 or step == len(batches):
            history.append({"step": step, "loss": sum(recent) / len(recent)})
            recent.clear()
            if state_folder is not None:
                weights, moments = model.state(), optimizer.state_dict()
                save_state(state_folder, State(fingerprint, step, weights, moments, random_state(), history, seconds))
        shown = recent[-_SHOWN:] or [history[-1]["loss"]]
        tokens = sum(len(one.ids) for batch in batches[:step] for one in batch)
        report(Progress(step, len(batches), sum(shown) / len(shown), tokens))
    return Fitted(
        history=history,
        steps=len(batches),
        stories=len(fitting),
        oversized=len(packs) - len(fitting),
        tokens=sum(len(one.ids) for one in fitting),
        learned=sum(len(one.targets) for one in fitting),
        seconds=seconds,
    )


def _advance(model: ChatModel, optimizer: Any, batch: Sequence[Any], clip: float, step: int) -> float:
    """One step of the optimizer; the mean loss of the batch's answer tokens."""
    learned = sum(len(one.targets) for one in batch)
    total = 0.0
    for packed in batch:
        loss: Any = model.losses(packed).sum() / learned
        loss.backward()
        total += loss.item()
    if not math.isfinite(total):
        raise TrainingError(f"step {step + 1}: the loss is {total}; lower --learning-rate")
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return total


def _schedule(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: a linear rise, then a cosine to zero."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
