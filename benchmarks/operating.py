"""The part of the page that an operator reads: what this machine serves, and which setting to turn."""

from __future__ import annotations

from typing import Final

from benchmarks.results import Curve, Results
from canopy_training.evaluation.tables import table

#: Share of the highest throughput from which on more requests in flight only wait.
_FULL: Final = 0.95

_HINTS: Final = (
    (
        "items without a tree",
        "index once and send trees: a cold call takes the encoder for every node",
        "`canopy index`, `CanopyClient.index`",
    ),
    (
        "cold calls have to be fast",
        "take the contextual encoding: an item costs its own tokens; recall is lower (see evaluation.md), and trees of "
        "the other encoding are refused",
        "`CANOPY_NODE_ENCODING=contextual`",
    ),
    (
        "latency grows with load while cores are busy",
        "more replicas; more instances on the same cores only take them from each other",
        "`instance_group.count` of `hierarchy` and `refinement`",
    ),
    (
        "more cores",
        "a second instance of `hierarchy` and `refinement` for each two cores more; an encoder call takes all cores by "
        "itself",
        "`instance_group.count`",
    ),
    (
        "encoding takes the cores that calls with trees need",
        "give the encoder fewer threads",
        "`CANOPY_THREADS`, or the parameter `threads` of both encoders",
    ),
    (
        "calls wait too long before they are refused",
        "a shorter queue refuses sooner; what was accepted is finished",
        "`max_queue_size` in `dynamic_batching.default_queue_policy` of the encoders, `max_wait_ms` of `refinement` "
        "for items with trees; the client's `deadline_s`",
    ),
    ("questions repeat", "a larger cache of query vectors", "`CANOPY_CACHE_BYTES`"),
)


def one_page(results: Results) -> str:
    """What a node serves, and what to turn."""
    setup = results.setup
    rows = [_served(curve) for curve in results.curves]
    header = ["call", "requests/s", "items or queries/s", "p50 ms there", "p95 ms there", "in flight", "p50 ms of one"]
    parts = [
        "# Performance",
        f"## For an operator: what a node of {setup.cores} cores serves",
        table(header, rows) if rows else "",
        f"Each line is the point from which more requests in flight only wait ({_FULL:.0%} of the highest "
        "throughput). Plan for two thirds of it. Ten items of eight sentences a call where items are sent.",
        _resident(results),
        "| when | do | where |\n| --- | --- | --- |\n" + "\n".join(f"| {a} | {b} | {c} |" for a, b, c in _HINTS),
        _settings(results),
        "No GPU was used for this page: the `tensorrt` and `onnx` profiles serve the same graphs and were not "
        "measured. On a GPU the encoders leave the cores to `hierarchy` and `refinement`, so calls with trees stay "
        "bound by cores.",
    ]
    return "\n\n".join(part for part in parts if part)


def full_at(curve: Curve) -> int:
    """Place of the first row with :data:`_FULL` of the highest throughput."""
    highest = max(row.requests_per_s for row in curve.rows)
    return next(place for place, row in enumerate(curve.rows) if row.requests_per_s >= _FULL * highest)


def _served(curve: Curve) -> list[str]:
    row = curve.rows[full_at(curve)]
    return [
        curve.label,
        f"{row.requests_per_s:.1f}",
        f"{row.requests_per_s * curve.items:.0f}",
        f"{row.p50_ms:.1f}",
        f"{row.p95_ms:.1f}",
        str(row.concurrency),
        f"{curve.rows[0].p50_ms:.1f}",
    ]


def _resident(results: Results) -> str:
    if results.soak is None:
        return ""
    drifts = results.soak.drifts
    return (
        f"Memory: {drifts['all processes'].last:.0f} MiB for the server and its models, {drifts['/dev/shm'].last:.0f} "
        "MiB of /dev/shm with requests of this size; the latter grows with the largest request and is not given back."
    )


def _settings(results: Results) -> str:
    settings = results.setup.settings
    if not settings:
        return ""
    return "As measured: " + "; ".join(f"`{name}` {value}" for name, value in settings.items()) + "."
