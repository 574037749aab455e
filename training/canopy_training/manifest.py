"""The manifest of a training run: everything that a second run needs to come out the same, and what came out."""

from __future__ import annotations

import platform
import resource
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import torch

from canopy_backend.errors import TrainingError
from canopy_backend.manifest import AdapterCard, file_sha256
from canopy_backend.reading import UNREADABLE, told
from canopy_backend.templates import TEMPLATE_HASH
from canopy_export.source import Source
from canopy_training.data import Question
from canopy_training.settings import TrainSettings
from canopy_training.train import Trained

Record = TypeVar("Record", bound=msgspec.Struct)

RUN_FILE: Final = "run.json"
_PACKAGES: Final = ("accelerate", "canopy-triton", "numpy", "peft", "sentencex", "tokenizers", "torch", "transformers")


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the training questions.

    Attributes:
        questions: Training questions, by data set.
        dev_questions: Questions that were checked on, by data set.
        items: Gold items whose place is known.
        weak_items: Those of them that were found from answers alone.
        whole_items: Those with one fragment, where nothing is to be decided.
        instances: Instances that were trained on.
        lost: Gold items without a place, a line each.
        oversized: Items with instances that are too long for a step, a line each.
    """

    questions: dict[str, int]
    dev_questions: dict[str, int]
    items: int
    weak_items: int
    whole_items: int
    instances: int
    lost: list[str]
    oversized: list[str]


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run.

    Attributes:
        fingerprint: Hash over settings, base model, template and data; equal runs have equal ones.
        settings: The run's settings.
        base: Name of the base model.
        base_revision: Its revision.
        started_from: Revision of the adapter that the run started from; empty without one.
        template: Hash of the text templates.
        files: SHA-256 of each data file, by name.
        splits: The split that was trained on and the one that was checked on.
        counted: What became of the questions.
        steps: Steps of the optimizer.
        seconds: Time spent, over all sittings.
        peak_mib: Largest resident memory of the process.
        processes: Processes that took part.
        precision: Arithmetic of the forward pass.
        history: Step, mean loss since the last check and strict decision accuracy on a part of dev, for every check.
        versions: Versions of what ran.
        machine: Processor and threads.
    """

    fingerprint: str
    settings: TrainSettings
    base: str
    base_revision: str
    started_from: str = ""
    template: str
    files: dict[str, str]
    splits: tuple[str, str]
    counted: Counted
    steps: int
    seconds: float
    peak_mib: int
    processes: int
    precision: str
    history: list[dict[str, float | None]]
    versions: dict[str, str]
    machine: str

    @classmethod
    def load(cls, folder: Path) -> RunManifest:
        """Read the manifest of a run's folder.

        Raises:
            TrainingError: It is missing or is not a manifest.
        """
        return read_record(folder / RUN_FILE, cls)

    def save(self, folder: Path) -> None:
        """Write it into a run's folder."""
        write_record(folder / RUN_FILE, self)


def read_record(file: Path, kind: type[Record]) -> Record:
    """Read a JSON file that :func:`write_record` wrote.

    Raises:
        TrainingError: It is missing or is not one.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, *UNREADABLE) as error:
        raise TrainingError(f"{file}: {told(error)}") from None


def write_record(file: Path, record: msgspec.Struct) -> None:
    """Write a record as indented JSON."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def fingerprint_of(
    settings: TrainSettings,
    source: Source,
    files: Mapping[str, str],
    splits: tuple[str, str],
    limit: int | None,
    started_from: str,
) -> str:
    """32 hex digits over everything that decides a run's result."""
    # How often a run is checked and saved does not decide it.
    decisive = msgspec.structs.replace(settings, check_every=1, dev_instances=0)
    values = [decisive, source.revision, source.window, TEMPLATE_HASH, sorted(files.items()), splits, limit]
    values += [started_from] if started_from else []
    return blake2b(msgspec.json.encode(values), digest_size=16).hexdigest()


def hashes(files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of the data files and of the items files that stand beside them, by name."""
    beside = [file.with_name(file.name.replace(".questions.", ".items.")) for file in files]
    return {file.name: file_sha256(file) for file in sorted({*files, *beside}) if file.is_file()}


def run_manifest(
    trained: Trained,
    settings: TrainSettings,
    source: Source,
    *,
    fingerprint: str,
    files: dict[str, str],
    splits: tuple[str, str],
    questions: Sequence[Question],
    dev: Sequence[Question],
    started_from: str = "",
) -> RunManifest:
    """The manifest of a run that has just ended."""
    tally = trained.tally
    return RunManifest(
        fingerprint=fingerprint,
        settings=settings,
        base=source.name,
        base_revision=source.revision,
        started_from=started_from,
        template=TEMPLATE_HASH,
        files=files,
        splits=splits,
        counted=Counted(
            questions=_by_dataset(questions),
            dev_questions=_by_dataset(dev),
            items=tally.items,
            weak_items=tally.weak_items,
            whole_items=tally.whole,
            instances=tally.instances,
            lost=tally.lost,
            oversized=tally.oversized,
        ),
        steps=trained.steps,
        seconds=round(trained.seconds, 1),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        processes=trained.processes,
        precision=trained.precision,
        history=[{name: _rounded(value) for name, value in line.items()} for line in trained.history],
        versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        machine=machine(),
    )


def adapter_card(source: Source, settings: TrainSettings) -> AdapterCard:
    """What the export and the evaluation check an adapter against."""
    return AdapterCard(
        base=source.name,
        base_revision=source.revision,
        template=TEMPLATE_HASH,
        node_encoding=settings.node_encoding,
        pooling=source.pooling,
        dimension=source.dimension,
        window=source.window,
        branching=settings.branching,
    )


def _by_dataset(questions: Sequence[Question]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for question in questions:
        counts[question.dataset] = counts.get(question.dataset, 0) + 1
    return counts


def _rounded(value: float) -> float | None:
    """JSON has no NaN."""
    return round(value, 4) if value == value else None


def machine() -> str:
    """Processor or GPUs, and threads."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    named: Any = None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
    except OSError:
        named = None
    threads = torch.get_num_threads()
    return f"{named or platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"
