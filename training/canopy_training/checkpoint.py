"""The state of a run on disk, from which a killed run goes on as if it had not been killed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from canopy_backend.errors import TrainingError

STATE_FILE: Final = "state.pt"


@dataclass(slots=True)
class State:
    """Where a run stands.

    Attributes:
        fingerprint: Hash of settings, base model and data; another run's state is refused.
        step: Steps done.
        weights: The LoRA weights by name.
        optimizer: State of the optimizer.
        random: State of torch's generators: CPU, then each GPU.
        history: Lines of the run's history so far.
        seconds: Time spent so far.
    """

    fingerprint: str
    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    random: list[Tensor]
    history: list[dict[str, float]]
    seconds: float


def save_state(folder: Path, state: State) -> None:
    """Write the state, all of it or nothing."""
    partial = folder / f"{STATE_FILE}.partial"
    torch.save({name: getattr(state, name) for name in State.__slots__}, partial)
    os.replace(partial, folder / STATE_FILE)


def load_state(folder: Path, fingerprint: str) -> State | None:
    """The state in a folder; ``None`` where there is none.

    Raises:
        TrainingError: It belongs to another run or cannot be read.
    """
    file = folder / STATE_FILE
    if not file.is_file():
        return None
    try:
        state = State(**torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file raises anything
        raise TrainingError(f"{file}: cannot be read ({error}); delete it to start over") from error
    if state.fingerprint != fingerprint:
        raise TrainingError(
            f"{file}: made with other settings, data or base model; choose another --out, or delete it to start over"
        )
    return state


def random_state() -> list[Tensor]:
    """State of torch's generators."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]


def restore_random(states: list[Tensor]) -> None:
    """Put torch's generators back."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
