"""The report of an evaluation of the loop: one file for programs, from which page and figure are made."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import TrainingError
from canopy_backend.reading import UNREADABLE, told
from canopy_training.evaluation.bootstrap import RESAMPLES
from canopy_training.evaluation.report import write
from canopy_training.loop.aims import TWO_HOP, Aim, judge
from canopy_training.loop.arms import BASELINE, Arm
from canopy_training.loop.outcome import Outcome
from canopy_training.loop.summary import Scope, sampled, scopes, shared, summarise

REPORT_FILE: Final = "loop.json"
#: Counts up when a field changes its meaning or goes.
VERSION: Final = 1
_PACKAGES: Final = ("canopy-triton", "numpy", "pymilvus", "milvus-lite", "tritonclient")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Under which conditions questions were worked on; arms of one report share them.

    Attributes:
        files: Data files by name, with their SHA-256.
        split: Split of the questions; ``None`` for all.
        limit: Most questions of each data set; ``None`` for all.
        questions: Questions asked.
        items: Items in the corpus.
        encoder: Revision of the evidence server's encoder.
        model: The language model; empty for none.
        weights: SHA-256 of its weights where its folder is here, as with the local stack; else empty.
        prompts: Version of its prompts.
        budget: Most evidence tokens of a prompt.
        deadline_s: Seconds that a question might take.
        in_flight: Most questions at a time.
    """

    files: dict[str, str]
    split: str | None
    limit: int | None
    questions: int
    items: int
    encoder: str
    model: str
    weights: str
    prompts: str
    budget: int
    deadline_s: float
    in_flight: int


class ArmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One arm, run.

    Attributes:
        arm: What it is.
        seconds: Wall clock of all its questions.
        outcomes: One a question, in order.
    """

    arm: Arm
    seconds: float
    outcomes: list[Outcome]


class ArmReport(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in the report.

    Attributes:
        arm: What it is.
        seconds: Wall clock of all its questions.
        failed: What went wrong, by question; those without any round are left out of every figure of every arm.
    """

    arm: Arm
    seconds: float
    failed: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of the loop.

    Attributes:
        version: Of this layout.
        command: The command line.
        setting: Conditions.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        versions: Of the packages that matter.
        lost: One line for each gold item whose place was not found; it counts as a whole.
        compared: Questions that every arm worked on.
        arms: What was run.
        scopes: What the arms reach.
        aims: What they should reach, and whether they do, on two-hop questions; empty without such questions.
    """

    version: int = VERSION
    command: str
    setting: Setting
    seed: int
    resamples: int
    versions: dict[str, str]
    lost: list[str]
    compared: int
    arms: list[ArmReport]
    scopes: list[Scope]
    aims: list[Aim]

    def save(self, folder: Path) -> None:
        """Write ``loop.json`` into a folder, all of it or nothing."""
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


def make_report(
    runs: Sequence[ArmRun],
    setting: Setting,
    *,
    lost: Sequence[str] = (),
    command: str = "",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Report:
    """Figures, intervals and aims of arms that were run on the same questions.

    Raises:
        TrainingError: No question was worked on by every arm.
    """
    arms = shared({run.arm.name: run.outcomes for run in runs})
    first = next(iter(arms.values()))
    if not first:
        raise TrainingError("no question was worked on by every arm")
    found: list[Scope] = []
    aims: list[Aim] = []
    for name, rows in scopes(first):
        figures = sampled(arms, rows, resamples=resamples, seed=seed)
        found.append(summarise(name, arms, rows, figures))
        if name == TWO_HOP:
            aims = judge(figures, _loops(runs))
    return Report(
        command=command,
        setting=setting,
        seed=seed,
        resamples=resamples,
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        lost=list(lost),
        compared=len(first),
        arms=[
            ArmReport(
                arm=run.arm,
                seconds=run.seconds,
                failed={one.question: one.error for one in run.outcomes if one.error},
            )
            for run in runs
        ],
        scopes=found,
        aims=aims,
    )


def _loops(runs: Sequence[ArmRun]) -> Mapping[str, bool]:
    """The loops that aims are about: as many items in the first round as the baseline, compressed."""
    k = next((run.arm.k for run in runs if run.arm.name == BASELINE), 0)
    return {
        run.arm.name: run.arm.reads for run in runs if run.arm.critic != "none" and run.arm.compress and run.arm.k == k
    }
