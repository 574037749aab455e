"""The card of a trained adapter: what a reader has to know before using it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from canopy_backend.manifest import AdapterCard
from canopy_training.manifest import RunManifest

CARD_PAGE: Final = "README.md"


_HEAD: Final = """# LoRA adapter for `{base}`, {encoding} node encoding

A node encoder for CANOPY: with this adapter the base model scores the regions of an item (sentences, rows, runs of
them) against a question that the base model without it encodes. It was fitted to gold evidence so that a region scores
above the region around it where it holds the evidence, and below where it does not. It is of no use for retrieval, nor
with another base model, text template or node encoding: the export compares `canopy_adapter.json` and refuses those.
"""


def card_page(run: RunManifest) -> str:
    """A Markdown page from a run's manifest; names the data sets, and leaves their licences to who trains."""
    return f"""{_head(run.base, run.settings.node_encoding)}
## Training

{_training(run)}
Versions, data hashes and the course of the run are in `run.json`.
"""


def blend_page(card: AdapterCard, parts: Sequence[tuple[float, RunManifest | None]]) -> str:
    """A Markdown page of a blended adapter: the weight and the run of each part."""
    total = sum(weight for weight, _ in parts)
    sections = [
        f"## Part {number}: {weight:g} of the difference from the base model\n\n"
        + (_training(run) if run else "Its folder did not say how it was trained.\n")
        for number, (weight, run) in enumerate(parts, start=1)
    ]
    return f"""{_head(card.base, card.node_encoding)}
Blended with `canopy blend`: a weighted sum of trained adapters, with {total:g} as the sum of the weights. What is
below 1 pulls the encoder back toward the base model.

{chr(10).join(sections)}
Versions, data hashes and the course of each run are in `blend.json`.
"""


def _head(base: str, encoding: str) -> str:
    return _HEAD.format(base=base, encoding=encoding)


def _training(run: RunManifest) -> str:
    settings, counted = run.settings, run.counted
    sets = "\n".join(f"| {name} | {number} |" for name, number in sorted(counted.questions.items()))
    last = run.history[-1]
    dev = f", {100 * last['dev']:.1f} % strict decision accuracy on a part of dev" if last["dev"] is not None else ""
    weak = f"; {counted.weak_items} of them found from answers alone" if counted.weak_items else ""
    start = f", starting from adapter {run.started_from[:16]}" if run.started_from else ""
    left_out = len(counted.lost) + len(counted.oversized)
    return f"""{counted.instances} instances from {counted.items} gold items{weak}; {left_out} more, named in the run's
record, were left out. List-wise loss with scale {settings.scale:g} and gold weight {settings.gold_weight:g},
{settings.epochs} epoch{"s" * (settings.epochs > 1)} in {run.steps} steps of about {settings.step_tokens} tokens, AdamW
at {settings.learning_rate:g} with a short rise and a cosine to zero, weight decay {settings.weight_decay:g}, rank
{settings.rank}, alpha {settings.alpha:g}, dropout {settings.dropout:g}, branching {settings.branching},
seed {settings.seed}, {run.precision}{start}. {run.seconds / 60:.0f} minutes, {run.peak_mib} MiB at most, on
{run.machine}.
Last loss {last["loss"]:.3f}{dev}.

| data set | training questions |
| --- | --- |
{sets}
"""
