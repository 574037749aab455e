"""A training run: from questions and settings to an adapter with its manifest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canopy_backend.errors import TrainingError
from canopy_backend.tokenization import EncoderTokenizer
from canopy_export.source import Source
from canopy_training.batches import batches
from canopy_training.checkpoint import State, load_state, random_state, restore_random, save_state
from canopy_training.data import Question
from canopy_training.encoder import collate, decided, node_scores
from canopy_training.examples import Example, Tally, make_examples
from canopy_training.loss import listwise
from canopy_training.model import NodeModel
from canopy_training.queries import query_vectors
from canopy_training.settings import TrainSettings

#: Seed of the choice of dev examples; fixed, so that runs with other seeds are checked on the same ones.
_DEV_SEED: Final = 20260


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run tells while it goes.

    Attributes:
        step: Steps done.
        steps: Steps of the whole run.
        loss: Mean loss of the last steps.
        dev: Strict decision accuracy at the last check, 0 to 1; NaN before it or without dev questions.
    """

    step: int
    steps: int
    loss: float
    dev: float


@dataclass(slots=True)
class Trained:
    """What a run leaves.

    Attributes:
        model: The node encoder with its learned matrices.
        history: ``step``, ``loss``, ``dev`` of every check.
        steps: Steps of the run.
        seconds: Time spent, over all sittings.
        tally: What became of the training questions.
        processes: Processes that took part.
        precision: ``bf16`` or ``fp32``, as it was used.
        main: Whether this process is the one that writes the results.
    """

    model: NodeModel
    history: list[dict[str, float]]
    steps: int
    seconds: float
    tally: Tally
    processes: int
    precision: str
    main: bool


def train(
    source: Source,
    settings: TrainSettings,
    questions: Sequence[Question],
    dev: Sequence[Question],
    *,
    start: Path | None = None,
    state_folder: Path | None = None,
    fingerprint: str = "",
    report: Callable[[Progress], None] = lambda _: None,
) -> Trained:
    """Fit LoRA matrices to gold evidence.

    Args:
        source: The base model.
        settings: Everything else that decides the result.
        questions: Training questions.
        dev: Questions to check on; may be empty.
        start: Folder of an adapter to start from; without one the matrices start at nothing.
        state_folder: Folder in which the run's state is kept and from which it goes on.
        fingerprint: Names the run; a state of another one is refused.
        report: Called after every step.

    Raises:
        TrainingError: There is nothing to learn from, or the state cannot be used.
    """
    run = _Run(source, settings, questions, dev, start)
    run.resume(state_folder, fingerprint)
    started = time.monotonic() - run.seconds
    while run.step < run.steps:
        report(Progress(run.step + 1, run.steps, run.advance(), run.history[-1]["dev"] if run.history else math.nan))
        if run.step % settings.check_every == 0 or run.step == run.steps:
            run.check()
            run.seconds = time.monotonic() - started
            if state_folder is not None and run.accelerator.is_main_process:
                save_state(state_folder, run.state(fingerprint))
            report(Progress(run.step, run.steps, run.history[-1]["loss"], run.history[-1]["dev"]))
    run.model.learning(False)
    return Trained(
        model=run.model,
        history=run.history,
        steps=run.steps,
        seconds=run.seconds,
        tally=run.tally,
        processes=int(run.accelerator.num_processes),
        precision=run.precision,
        main=bool(run.accelerator.is_main_process),
    )


class _Run:
    """The moving parts of one run."""

    def __init__(
        self,
        source: Source,
        settings: TrainSettings,
        questions: Sequence[Question],
        dev: Sequence[Question],
        start: Path | None,
    ) -> None:
        self.settings = settings
        self.precision = _precision(settings)
        self.accelerator = _accelerator()
        tokenizer = source.encoder_tokenizer("node")
        self.examples, self.tally = self._examples(questions, tokenizer)
        if not self.examples:
            raise TrainingError("no decision to learn from: " + "; ".join(self.tally.lines()))
        self.dev_examples = _sample(self._examples(dev, tokenizer)[0], settings.dev_instances)
        device = self.accelerator.device
        self.queries = query_vectors(source, questions, device).to(device)
        self.dev_queries = query_vectors(source, dev, device).to(device) if dev else self.queries
        torch.manual_seed(settings.seed)
        self.model = NodeModel(source, settings, start)
        self.optimizer: Any = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.graph: nn.Module
        self.graph, self.optimizer = self.accelerator.prepare(self.model.graph, self.optimizer)
        self.plans = [self._epoch(epoch) for epoch in range(settings.epochs)]
        self.steps = sum(map(len, self.plans))
        self.order = [step for plan in self.plans for step in plan]
        self.step = 0
        self.seconds = 0.0
        self.history: list[dict[str, float]] = []
        self.recent: list[float] = []

    def _examples(self, questions: Sequence[Question], tokenizer: EncoderTokenizer) -> tuple[list[Example], Tally]:
        return make_examples(
            questions,
            tokenizer,
            node_encoding=self.settings.node_encoding,
            branching=self.settings.branching,
            max_tokens=self.settings.step_tokens,
        )

    def _epoch(self, epoch: int) -> list[list[int]]:
        """This process's steps of an epoch; every process gets as many."""
        every = batches(self.examples, self.settings.step_tokens, seed=self.settings.seed, epoch=epoch)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        if len(every) < world:
            raise TrainingError(f"{len(every)} steps an epoch are too few for {world} processes; lower --step-tokens")
        return every[rank::world][: len(every) // world]

    def advance(self) -> float:
        """One step; the mean loss since the last check."""
        rate = self.settings.learning_rate * _schedule(self.step, self.steps, self.settings.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = collate([self.examples[place] for place in self.order[self.step]]).to(self.accelerator.device)
        self.model.learning(True)
        with self.cast():
            scores = node_scores(self.graph, batch, self.queries)
        weights = torch.where(batch.enters, self.settings.gold_weight, 1.0)
        loss = listwise(scores, batch.pairs, batch.owner, batch.n_instances, self.settings.scale, weights).mean()
        if not torch.isfinite(loss):
            raise TrainingError(f"step {self.step + 1}: the loss is {loss.item()}; lower --learning-rate")
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.recent.append(loss.item())
        return sum(self.recent) / len(self.recent)

    def cast(self) -> torch.autocast:
        """The arithmetic of a forward pass."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def check(self) -> None:
        """Score the dev examples and note how the run stands."""
        dev = self.accuracy() if self.dev_examples else math.nan
        loss = sum(self.recent) / max(1, len(self.recent))
        self.history.append({"step": self.step, "loss": loss, "dev": dev})
        self.recent = []

    def accuracy(self) -> float:
        """Strict decision accuracy on the dev examples, 0 to 1."""
        self.model.learning(False)
        right: list[Tensor] = []
        for step in batches(self.dev_examples, self.settings.step_tokens, seed=0, epoch=0):
            batch = collate([self.dev_examples[place] for place in step]).to(self.accelerator.device)
            with torch.no_grad(), self.cast():
                right.append(decided(batch, node_scores(self.graph, batch, self.dev_queries)))
        return float(torch.cat(right).float().mean())

    def state(self, fingerprint: str) -> State:
        """Everything that the rest of the run depends on."""
        return State(
            fingerprint=fingerprint,
            step=self.step,
            weights=self.model.state(),
            optimizer=self.optimizer.state_dict(),
            random=random_state(),
            history=self.history,
            seconds=self.seconds,
        )

    def resume(self, folder: Path | None, fingerprint: str) -> None:
        """Go on from the state in a folder, if there is one."""
        state = load_state(folder, fingerprint) if folder is not None else None
        if state is None:
            return
        self.model.restore(state.weights)
        self.optimizer.load_state_dict(state.optimizer)
        restore_random(state.random)
        self.step, self.history, self.seconds = state.step, state.history, state.seconds


def _schedule(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: a linear rise, then a cosine to zero."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _precision(settings: TrainSettings) -> str:
    from accelerate.utils import is_bf16_available

    if settings.precision != "auto":
        return settings.precision
    fast = torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bf16" if fast and is_bf16_available() else "fp32"


def _accelerator() -> Any:
    from accelerate import Accelerator

    # Its own precision is a setting of the whole process; the forward pass casts by itself. bfloat16 needs no scaler.
    return Accelerator(mixed_precision="no", cpu=not torch.cuda.is_available())


def _sample(examples: list[Example], n_instances: int) -> list[Example]:
    """Examples at random until they hold so many instances."""
    random = torch.Generator().manual_seed(_DEV_SEED)
    chosen: list[Example] = []
    count = 0
    for place in torch.randperm(len(examples), generator=random).tolist():
        if count >= n_instances:
            break
        chosen.append(examples[place])
        count += examples[place].n_instances
    return chosen
