"""The card of a trained adapter: what a reader has to know before using it."""

from __future__ import annotations

from typing import Final

from canopy_training.manifest import RunManifest

CARD_PAGE: Final = "README.md"


def card_page(run: RunManifest) -> str:
    """A Markdown page from a run's manifest; names the data sets, and leaves their licences to who trains."""
    settings, counted = run.settings, run.counted
    sets = "\n".join(f"| {name} | {number} |" for name, number in sorted(counted.questions.items()))
    last = run.history[-1]
    dev = f", {100 * last['dev']:.1f} % strict decision accuracy on a part of dev" if last["dev"] is not None else ""
    weak = f"; {counted.weak_items} of them found from answers alone" if counted.weak_items else ""
    start = f", starting from adapter {run.started_from[:16]}" if run.started_from else ""
    left_out = len(counted.lost) + len(counted.oversized)
    return f"""# LoRA adapter for `{run.base}`, {settings.node_encoding} node encoding

A node encoder for CANOPY: with this adapter the base model scores the regions of an item (sentences, rows, runs of
them) against a question that the base model without it encodes. It was fitted to gold evidence so that a region scores
above the region around it where it holds the evidence, and below where it does not. It is of no use for retrieval, nor
with another base model, text template or node encoding: the export compares `canopy_adapter.json` and refuses those.

## Training

{counted.instances} instances from {counted.items} gold items{weak}; {left_out} lines of `run.json` name what was left
out. List-wise loss with scale {settings.scale:g} and gold weight {settings.gold_weight:g}, {settings.epochs} epochs in
{run.steps} steps of about {settings.step_tokens} tokens, AdamW at {settings.learning_rate:g} with a short rise and a
cosine to zero, rank {settings.rank}, alpha {settings.alpha:g}, dropout {settings.dropout:g}, branching
{settings.branching}, seed {settings.seed}, {run.precision}. {run.seconds / 60:.0f} minutes on {run.machine},
{run.peak_mib} MiB at most{start}. Last loss {last["loss"]:.3f}{dev}.

| data set | training questions |
| --- | --- |
{sets}

Versions, data hashes and the course of the run are in `run.json`.
"""
