"""What a run of the critic leaves beside its weights: the record, and the card for its readers."""

from __future__ import annotations

import platform
import resource
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Final

import msgspec

from canopy_backend.errors import TrainingError
from canopy_backend.manifest import file_sha256
from canopy_client.prompts import PROMPTS_VERSION
from canopy_training.critic.judging import Scores
from canopy_training.critic.samples import Sample
from canopy_training.critic.states import NEW, SPARE, K
from canopy_training.critic.train import CriticSettings, Fitted
from canopy_training.manifest import RUN_FILE, machine, read_record, write_record

_PACKAGES: Final = ("canopy-triton", "peft", "tokenizers", "torch", "transformers")


_WIDTH: Final = 120


class CriticRun(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run.

    Attributes:
        fingerprint: Hash over settings, base model, encoder, prompts and data; equal runs have equal ones.
        settings: The run's settings.
        base: Name of the base model.
        base_sha256: Hash of its weights.
        started_from: Revision of the adapter that the run started from; empty without one.
        node_adapter: Revision of the adapter that compressed the evidence; empty for none.
        prompts: Version of the prompts; with others the adapter is of less use.
        files: SHA-256 of each data file, by name.
        questions: Questions that were learned from.
        samples: Chats by role, the critic's by yes and no.
        stories: Stories that were learned from.
        oversized: Stories that were left out for their length.
        tokens: Tokens that were read.
        learned: Tokens of answers among them.
        steps: Steps of the optimizer.
        seconds: Time of the fitting, over all sittings.
        peak_mib: Largest resident memory of the process.
        history: Step, and mean loss since the line before.
        dev: Figures on dev with the adapter; ``None`` where none were asked for.
        dev_base: The same of the model as it comes.
        versions: Versions of what ran.
        machine: Processor and threads.
    """

    fingerprint: str
    settings: CriticSettings
    base: str
    base_sha256: str
    started_from: str = ""
    node_adapter: str
    prompts: str
    files: dict[str, str]
    questions: int
    samples: dict[str, int]
    stories: int
    oversized: int
    tokens: int
    learned: int
    steps: int
    seconds: float
    peak_mib: int
    history: list[dict[str, float]]
    dev: Scores | None
    dev_base: Scores | None
    versions: dict[str, str]
    machine: str

    @classmethod
    def load(cls, folder: Path) -> CriticRun:
        """Read the record of an adapter's folder.

        Raises:
            TrainingError: It is missing or is not one.
        """
        return read_record(folder / RUN_FILE, cls)

    def save(self, folder: Path) -> None:
        """Write it into an adapter's folder."""
        write_record(folder / RUN_FILE, self)


def weights_hash(folder: Path) -> str:
    """SHA-256 of a model's weights.

    Raises:
        TrainingError: There are none.
    """
    file = folder / "model.safetensors"
    try:
        return file_sha256(file)
    except OSError as error:
        raise TrainingError(f"{file}: {error.strerror or error}") from None


def fingerprint_of(
    settings: CriticSettings, base_sha256: str, node_adapter: str, files: Mapping[str, str], choice: Sequence[object]
) -> str:
    """32 hex digits over everything that decides a run's result.

    Args:
        settings: The run's settings; how often its state is saved does not decide anything.
        base_sha256: Hash of the base model's weights.
        node_adapter: Revision of the node encoder's adapter.
        files: SHA-256 of each data file, by name.
        choice: What of the files is learned from: splits and limits.
    """
    decisive = msgspec.structs.replace(settings, check_every=1)
    made_by = (K, SPARE, NEW, PROMPTS_VERSION)
    values = [decisive, base_sha256, node_adapter, sorted(files.items()), list(choice), made_by]
    return blake2b(msgspec.json.encode(values), digest_size=16).hexdigest()


def counts(stories: Sequence[Sequence[Sample]]) -> dict[str, int]:
    """Chats by role, the critic's by yes and no."""
    result: dict[str, int] = {}
    for story in stories:
        for sample in story:
            said = "" if sample.role != "critic" else " yes" if '"sufficient":"yes"' in sample.answer else " no"
            result[sample.role + said] = result.get(sample.role + said, 0) + 1
    return dict(sorted(result.items()))


def versions() -> dict[str, str]:
    """Versions of what runs."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def record(
    fitted: Fitted,
    settings: CriticSettings,
    stories: Sequence[Sequence[Sample]],
    *,
    fingerprint: str,
    base: str,
    base_sha256: str,
    started_from: str,
    node_adapter: str,
    files: dict[str, str],
    questions: int,
    dev: tuple[Scores, Scores] | None,
) -> CriticRun:
    """The record of a run that has just ended; ``dev`` has the figures with the adapter, then without."""
    return CriticRun(
        fingerprint=fingerprint,
        settings=settings,
        base=base,
        base_sha256=base_sha256,
        started_from=started_from,
        node_adapter=node_adapter,
        prompts=PROMPTS_VERSION,
        files=files,
        questions=questions,
        samples=counts(stories),
        stories=fitted.stories,
        oversized=fitted.oversized,
        tokens=fitted.tokens,
        learned=fitted.learned,
        steps=fitted.steps,
        seconds=round(fitted.seconds, 1),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        history=[{name: round(value, 4) for name, value in line.items()} for line in fitted.history],
        dev=dev[0] if dev else None,
        dev_base=dev[1] if dev else None,
        versions=versions(),
        machine=machine(),
    )


def card_page(run: CriticRun) -> str:
    """A Markdown page from a run's record; names no data set's licence, which is for who trains to look up."""
    settings = run.settings
    start = f", starting from adapter {run.started_from[:16]}" if run.started_from else ""
    samples = "\n".join(f"| {name} | {number} |" for name, number in run.samples.items())
    about = (
        "With this adapter the model judges whether evidence is enough for a question, names what is missing and a "
        f"search text for it, and plays the loop's other roles. It was fitted through the prompts of version "
        f"{run.prompts}; with others it is of less use. `canopy up` merges it into the model."
    )
    how = (
        f"{run.stories} stories of {run.questions} questions: {run.tokens} tokens, of which {run.learned} are learned, "
        f"in {run.steps} steps of {settings.batch} stories; {run.oversized} stories over {settings.max_tokens} tokens "
        f"were left out. AdamW at {settings.learning_rate:g} with a short rise and a cosine to zero, "
        f"rank {settings.rank}, alpha {settings.alpha:g}, layers from {settings.first_layer} on, "
        f"seed {settings.seed}{start}. {run.seconds / 60:.0f} minutes, {run.peak_mib} MiB at most, on {run.machine}. "
        f"Last loss {run.history[-1]['loss']:.3f} a token."
    )
    return f"""# LoRA adapter of the critic for `{run.base}`

{fill(about, _WIDTH)}

## Training

{fill(how, _WIDTH)}

| answers | number |
| --- | --- |
{samples}
{_dev(run)}
Versions, data hashes and the course of the run are in `run.json`.
"""


def _dev(run: CriticRun) -> str:
    if run.dev is None or run.dev_base is None:
        return ""
    return f"""
## On {run.dev.questions} dev questions, first round, decoded freely

{scores_table(run.dev, run.dev_base)}
"""


def scores_table(tuned: Scores, base: Scores) -> str:
    """Both models' figures side by side, in Markdown."""
    rows = [
        ("verdict right", "right"),
        ("of complete evidence, called sufficient", "stops"),
        ("of incomplete evidence, called insufficient", "goes_on"),
        ("no verdict in the answer", "unreadable"),
        ("questions asked for a missing item", "asked"),
        ("of those, found among the first 4", "found_4"),
        ("of those, found among the first 10", "found_10"),
        ("of all with an item missing, found", "gained"),
    ]
    lines = ["| | as it comes | with the adapter |", "| --- | --- | --- |"]
    lines += [f"| {words} | {_shown(getattr(base, name))} | {_shown(getattr(tuned, name))} |" for words, name in rows]
    return "\n".join(lines)


def _shown(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{100 * value:.1f} %"
