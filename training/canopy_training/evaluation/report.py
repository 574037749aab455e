"""The report of an evaluation: one file for programs, which tables and figures are drawn from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import TrainingError
from canopy_backend.reading import UNREADABLE, told
from canopy_training.evaluation.metrics import LevelScores
from canopy_training.evaluation.summary import Scope
from canopy_training.evaluation.sweeps import SweepReport
from canopy_training.evaluation.vectors import SourceCard

REPORT_FILE: Final = "evaluation.json"
#: Counts up when a field changes its meaning or goes.
VERSION: Final = 1


class SystemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One encoder.

    Attributes:
        card: What it is.
        seconds: Wall clock of encoding and scoring.
        encoded: Items that were encoded, equal contents once.
        left_out_items: Items without vectors, by id, with the reason.
        left_out_queries: Questions without a vector, by text, with the reason.
        cut: Items with leaves longer than the window, by id, with the number of such leaves; no text of them is lost.
        levels: Root-relative scores by level.
    """

    card: SourceCard
    seconds: float
    encoded: int
    left_out_items: dict[str, str]
    left_out_queries: dict[str, str]
    cut: dict[str, int]
    levels: list[LevelScores]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation.

    Attributes:
        version: Of this layout.
        command: The command line.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        versions: Of the packages that matter.
        files: Data files by name, with their SHA-256.
        split: The split that was evaluated; ``None`` for all.
        questions: Questions that were evaluated.
        items: Shown items, one counted for each question that shows it.
        lost: One line for each gold item whose place was not found.
        systems: The encoders, the frozen one first where there are two.
        scopes: What they reach.
        sweeps: What flat selectors reach on the same scores.
    """

    version: int = VERSION
    command: str
    seed: int
    resamples: int
    versions: dict[str, str]
    files: dict[str, str]
    split: str | None
    questions: int
    items: int
    lost: list[str]
    systems: list[SystemReport]
    scopes: list[Scope]
    sweeps: list[SweepReport]

    def save(self, folder: Path) -> None:
        """Write ``evaluation.json`` into a folder, all of it or nothing."""
        write(folder / REPORT_FILE, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, folder: Path) -> Report:
        """Read what :meth:`save` wrote.

        Raises:
            TrainingError: It is missing, or a report of another version.
        """
        file = folder / REPORT_FILE
        try:
            report = msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, *UNREADABLE) as error:
            raise TrainingError(f"{file}: not a report that this version reads ({told(error)})") from None
        if report.version != VERSION:
            raise TrainingError(f"{file}: a report of version {report.version}, this version reads {VERSION}")
        return report


def write(file: Path, content: bytes) -> None:
    """Write a file, all of it or nothing."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, file)
