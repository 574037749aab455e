"""The performance page, made from one run's results. Every figure in it is one of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.growth import doublings
from benchmarks.load import Figures
from benchmarks.operating import one_page
from benchmarks.ratios import all_ratios, hit, median
from benchmarks.results import Ratio, Results, Side, Size
from canopy_training.evaluation.tables import table

#: Folder of the figures, beside the page.
FIGURES: Final = "performance"
#: What this bench runs nowhere.
_NEVER: Final = {
    "a GPU, the `tensorrt` and the `onnx` profile": "the local stack serves the `embedded` profile on the CPU",
    "a network between client and server": "all calls go over loopback",
    "critic, reader and retrieval": "this bench measures the evidence server alone",
}
_ENCODERS: Final = {
    "triton": "node encoder through Triton, gRPC",
    "served": "the same session, in process",
    "session": "the same graph in ONNX Runtime in float32, in process",
    "sentence_transformers": "sentence-transformers, in process",
    "infinity": "infinity-emb, HTTP",
    "vllm": "vLLM's pooling endpoint, HTTP",
}


def page(results: Results, figures: Sequence[str]) -> str:
    """The page as Markdown; ``figures`` are names of files in :data:`FIGURES`."""
    parts = [
        one_page(results),
        _method(results),
        _ratios(all_ratios(results)),
        _peers(results),
        _encoders(results),
        _curves(results, figures),
        _growth(results, figures),
        _refining(results),
        _merging(results),
        _overload(results),
        _memory(results, figures),
        _not_run(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _method(results: Results) -> str:
    setup = results.setup
    rounds = len(next(iter(results.warm.values())).p50_ms) if results.warm else 0
    versions = ", ".join(f"{name} {version}" for name, version in sorted(setup.versions.items()))
    lines = [
        "## How it was measured",
        "",
        f"- Machine: {setup.machine}. Triton {setup.triton}, profile `embedded`; node encoder {setup.revision}, "
        f"{setup.precision}.",
        f"- Load: {setup.load} over gRPC on loopback. Each side of a ratio ran in {rounds} rounds, in turn with the "
        "others, after a warm-up; tables and ratios give medians of these rounds.",
        f"- Workload: {setup.items} items and {setup.questions} questions with ten items each ({setup.sources}). "
        "Ratios use ten passages of eight sentences of `examples/corpus`; their trees add "
        f"{setup.tree_kb:.0f} kB to a request.",
        f"- Peers: each in a process of its own, {setup.threads} threads, the same base model in float32, as they "
        f"come, nothing remembered between calls. {versions or 'None was installed.'}",
        f"- Command: `make {'bench-quick' if setup.quick else 'bench'}`"
        + (" (short runs: fewer sizes and repetitions than `make bench`)." if setup.quick else "."),
    ]
    if results.grown_again:
        lines.append(
            "- Growth and refinement were measured after that, with nothing else on the machine: "
            "`python -m benchmarks.run --again .canopy/bench/results.json --growth --write`."
        )
    return "\n".join(lines)


def _ratios(ratios: Sequence[Ratio]) -> str:
    rows = [
        [
            one.what + (f" ({one.note})" if one.note else ""),
            _number(median(one)),
            f"{_number(min(one.values))}–{_number(max(one.values))}" if len(one.values) > 1 else "",
            f"at {'least' if one.at_least else 'most'} {one.aim:g}",
            "hit" if hit(one) else "**missed**",
        ]
        for one in ratios
    ]
    reached = sum(hit(one) for one in ratios)
    text = f"## Ratios\n\n{reached} of {len(ratios)} reach their aim.\n\n"
    return text + table(["ratio, median", "", "range", "aim", "in words"], rows)


def _peers(results: Results) -> str:
    rows = [
        [
            side.label,
            _number(_median(side.p50_ms)),
            _number(_median(side.per_s)) if side.per_s else "",
            f"{side.tokens:.0f}" if side.tokens is not None else "",
            f"{100 * side.recall:.1f} %" if side.recall is not None else "",
        ]
        for side in results.warm.values()
    ]
    cold = [
        [side.label, _number(_median(side.p50_ms)), "", "", ""]
        for sides in (results.cold, results.contextual)
        for side in _first(sides)
    ]
    header = ["ten items of eight sentences", "p50 ms", "requests/s, four at once", "tokens kept", "gold recall"]
    note = (
        f"Tokens kept and gold recall are of the workload's questions: {results.kept_whole:.0f} reader's tokens a "
        f"question in ten items, {results.gold} gold fragments. Filters keep as many sentences as they are told and "
        "may drop whole items; the served method keeps a part of every item, with its title. So times compare, and so "
        "do pairs of tokens and recall; neither column alone does. `python -m benchmarks.peers.run` compares at equal "
        "recall."
    )
    return f"## Beside peers\n\n{table(header, [*rows, *cold])}\n\n{note}"


def _first(sides: dict[str, Side]) -> list[Side]:
    return list(sides.values())[:1]


def _encoders(results: Results) -> str:
    if not results.throughput:
        return ""
    rows = [[_ENCODERS.get(name, name), f"{_median(rates):.0f}"] for name, rates in results.throughput.items()]
    text = "## Encoders on the same sentences\n\n" + table(["", "tokens/s"], rows)
    if results.indexing:
        text += (
            f"\n\n`index`: {_median(results.indexing):.0f} tokens/s of nodes and whole items; the node encoder alone, "
            f"in process, on the same node rows: {_median(results.indexing_alone):.0f}."
        )
    return text


def _curves(results: Results, figures: Sequence[str]) -> str:
    if not results.curves:
        return ""
    rows = [
        [curve.label, str(row.concurrency), *_figures(row), f"{row.requests_per_s * curve.items:.0f}"]
        for curve in results.curves
        for row in curve.rows
    ]
    header = ["call", "in flight", "requests/s", "p50 ms", "p95 ms", "items or queries/s"]
    return f"## Throughput and latency\n\n{_figure('load.png', figures, 'by requests in flight')}{table(header, rows)}"


def _figures(row: Figures) -> list[str]:
    return [_number(row.requests_per_s), _number(row.p50_ms), _number(row.p95_ms)]


def _growth(results: Results, figures: Sequence[str]) -> str:
    parts = ["## Growth", "", _figure("growth.png", figures, "cost by size").rstrip()]
    for title, head, rows in (
        (
            "Items of eight sentences in a call, seen from the client, which splits calls over 64",
            "items",
            results.by_items,
        ),
        ("One item by its fragments", "fragments", results.by_fragments),
    ):
        header = [
            head,
            "depth",
            "tokens of all nodes",
            "with trees ms",
            "cold ms",
            "index ms",
            "times, for twice as many",
        ]
        parts += ["", f"{title}:", "", table(header, _sizes(rows))]
    return "\n".join(parts)


def _sizes(rows: Sequence[Size]) -> list[list[str]]:
    steps = dict(doublings([one.size for one in rows], [one.tree_ms for one in rows]))
    some = [one for one in rows if one.cold_ms]
    cold = dict(doublings([one.size for one in some], [one.cold_ms for one in some]))
    index = dict(doublings([one.size for one in rows], [one.index_ms for one in rows]))
    return [
        [
            str(one.size),
            str(one.depth),
            str(one.tokens),
            _number(_median(one.tree_ms)),
            _number(_median(one.cold_ms)) if one.cold_ms else "",
            _number(_median(one.index_ms)),
            _step(steps.get(float(one.size)), "with trees")
            + _step(cold.get(float(one.size)), ", cold")
            + _step(index.get(float(one.size)), ", index"),
        ]
        for one in rows
    ]


def _step(factor: float | None, label: str) -> str:
    return "" if factor is None else f"{label} {factor:.2f}"


def _refining(results: Results) -> str:
    rows = [
        [
            str(one.fragments),
            str(one.branching),
            str(one.depth),
            f"{one.refine_us:.0f}",
            f"{one.walk_us:.0f}",
            f"{one.product_us:.0f}",
            f"{one.half_us:.0f}",
        ]
        for one in results.refining
    ]
    header = ["fragments", "branching", "depth", "scores and walk µs", "walk µs", "product µs", "float16 product µs"]
    note = "Product: numpy's matrix-vector product of the same vectors, the fastest of all calls."
    return f"## Refinement alone, in process\n\n{note}\n\n{table(header, rows)}"


def _merging(results: Results) -> str:
    rows = [
        [
            one.label,
            str(one.in_flight),
            f"`{name}`",
            str(count.requests),
            str(count.inferences),
            str(count.executions),
            f"{count.requests / max(1, count.executions):.2f}",
        ]
        for one in results.merging
        for name, count in one.models.items()
    ]
    if not rows:
        return ""
    header = ["load", "in flight", "model", "requests", "rows (inferences)", "executions", "requests an execution"]
    note = "From Triton's statistics endpoint: the dynamic batcher merges requests that wait for a model."
    return f"## Dynamic batching\n\n{note}\n\n{table(header, rows)}"


def _overload(results: Results) -> str:
    flood = results.flood
    if flood is None:
        return ""
    rows = [[status, str(number), f"{flood.latest_s[status]:.1f}"] for status, number in flood.answers.items()]
    text = (
        f"{flood.requests} requests of ten items with trees, all at once from two processes on the same cores; all "
        f"had an answer after {flood.seconds:.1f} s, and the next one alone took {_number(flood.after_ms)} ms."
    )
    return f"## Overload\n\n{text}\n\n{table(['answer', 'requests', 'the last after s'], rows)}"


def _memory(results: Results, figures: Sequence[str]) -> str:
    soak = results.soak
    if soak is None:
        return ""
    rows = [
        [name, f"{one.first:.1f}", f"{one.last:.1f}", f"{one.change:+.1f}", f"{one.per_1000:+.2f}"]
        for name, one in soak.drifts.items()
    ]
    header = ["MiB", "after warm-up", "at the end", "growth", "slope, a thousand requests"]
    text = (
        f"{soak.requests} requests of ten items with trees in a row, questions and items changing, "
        f"{soak.per_s:.0f} requests/s from a Python client. Warm-up is the first fifth. Pages that processes share "
        "count for each."
    )
    return f"## Memory\n\n{_figure('memory.png', figures, 'over requests')}{text}\n\n{table(header, rows)}"


def _not_run(results: Results) -> str:
    lines = [f"- {what}: {why}." for what, why in (_NEVER | results.not_run).items()]
    return "## What was not run\n\n" + "\n".join(lines)


def _figure(name: str, figures: Sequence[str], what: str) -> str:
    return f"![{what}]({FIGURES}/{name})\n\n" if name in figures else ""


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    if not np.isfinite(value):
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
