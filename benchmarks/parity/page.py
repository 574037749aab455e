"""The parity table as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.machine import machine
from benchmarks.parity.chain import AGREEMENT, MIN_COSINE, TIED, Link, Work
from canopy_training.evaluation.tables import table

HEADER: Final = (
    "precision",
    "link",
    "smallest cosine",
    "decisions equal",
    "equal or ties",
    "fragments as torch",
    "limits",
)


class Measured(msgspec.Struct, frozen=True):
    """What a run found.

    Attributes:
        model: The model's name.
        machine: Processor, cores, memory.
        reduced: In which reduced precisions OpenVINO computes on this processor; in the others it is float32
            arithmetic on reduced weights.
        items: Items of each kind.
        queries: Number of queries.
        links: The links.
    """

    model: str
    machine: str
    reduced: list[str]
    items: dict[str, int]
    queries: int
    links: list[Link]


def measured(model: str, work: Work, links: Sequence[Link]) -> Measured:
    """The run's figures with what they rest on."""
    kinds: dict[str, int] = {}
    for item in work.items:
        kind = type(item).__name__.removesuffix("Item").lower()
        kinds[kind] = kinds.get(kind, 0) + 1
    return Measured(model, machine(), reduced_here(), kinds, len(work.queries), list(links))


def reduced_here() -> list[str]:
    """The reduced precisions that OpenVINO computes in on this processor."""
    import openvino

    found: Any = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [name.lower() for name in ("BF16", "FP16") if name in found]


def rows(links: Sequence[Link]) -> str:
    """The table."""
    lines = [
        [
            one.precision,
            one.name,
            f"{one.cosine:.6f}",
            f"{one.equal} of {one.decisions}",
            f"{one.equal + one.tied} of {one.decisions}",
            f"{100 * one.agreement:.2f} % of {one.fragments}",
            one.verdict,
        ]
        for one in links
    ]
    return table(HEADER, lines)


def page(found: Measured, command: str) -> str:
    """The page."""
    items = ", ".join(f"{count} {kind}" for kind, count in found.items.items())
    arithmetic = " and ".join(found.reduced) or "no reduced precision"
    return "\n".join(
        [
            "# The parity chain",
            "",
            f"Machine: {found.machine}, where OpenVINO has {arithmetic}. Model: {found.model}. Items: {items}; "
            f"{found.queries} queries. Command: `{command}`.",
            "",
            rows(found.links),
            "",
            "Every link encodes the same queries and items and is compared with the first one: torch in float32, the "
            "adapter switched on beside the weights. The cosine is the smallest of all queries' and nodes' vectors. A "
            "decision is what one query keeps of one item; a tie is one where float32 compared two scores that the "
            "precision's rounding cannot tell apart (1e-5 in fp32, 5e-4 in fp16, 2e-3 in bf16).",
            "",
            f"Limits: cosine {MIN_COSINE['fp32']} in float32 and {MIN_COSINE['bf16']} in reduced precision, "
            f"{100 * AGREEMENT:g} % of fragments kept or dropped as in float32. *{TIED}* is a link whose vectors are "
            f"within the limit and whose decisions are equal or ties in {100 * AGREEMENT:g} %, but which keeps or "
            "drops fewer fragments as in float32. Scores of random weights lie close together, so rounding decides "
            "often; how often with a trained model's is not known before one is measured.",
            "",
        ]
    )


def write(found: Measured, folder: Path, command: str) -> None:
    """Write ``parity.md`` and ``parity.json``."""
    (folder / "parity.md").write_text(page(found, command), encoding="utf-8")
    encoded = msgspec.json.format(msgspec.json.encode(found), indent=2)
    (folder / "parity.json").write_bytes(encoded + b"\n")
