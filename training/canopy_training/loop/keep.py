"""Arms of an earlier run: each is kept when it ends, so that a run that was cut short goes on where it was."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.reading import UNREADABLE
from canopy_training.evaluation.report import write
from canopy_training.loop.arms import Arm
from canopy_training.loop.report import ArmRun, Setting

#: Share of an arm's questions that may fail by themselves; beyond it the arm is run again.
MOST_FAILED: Final = 0.05


class Kept:
    """A folder with one file an arm. What was run under other conditions has another name and is left alone.

    Args:
        folder: Made when something is stored.
        setting: Conditions of this run.
        questions: Ids of its questions, in order.
    """

    def __init__(self, folder: Path, setting: Setting, questions: list[str]) -> None:
        self._folder = folder
        self._conditions = msgspec.json.encode([setting, questions])

    def load(self, arm: Arm) -> ArmRun | None:
        """The arm as it was run under the same conditions; ``None`` when it was not, or cannot be read."""
        try:
            return msgspec.json.decode(self._file(arm).read_bytes(), type=ArmRun)
        except (OSError, *UNREADABLE):
            return None

    def store(self, run: ArmRun) -> None:
        """Keep an arm, unless so much of it failed that a server must have been gone."""
        if sum(bool(one.error) for one in run.outcomes) > MOST_FAILED * len(run.outcomes):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        write(self._file(run.arm), msgspec.json.encode(run))

    def _file(self, arm: Arm) -> Path:
        digest = hashlib.blake2b(self._conditions + msgspec.json.encode(arm), digest_size=8).hexdigest()
        return self._folder / f"{arm.name}-{digest}.json"
