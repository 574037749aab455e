"""Figures of the performance page."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from benchmarks.results import Curve, Results, Soak

LOAD: Final = "load.png"
GROWTH: Final = "growth.png"
MEMORY: Final = "memory.png"
_DPI: Final = 110


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what was measured; the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {GROWTH: _growth(results)}
    if results.curves:
        figures[LOAD] = _load(results.curves)
    if results.soak is not None:
        figures[MEMORY] = _memory(results.soak)
    for name, figure in figures.items():
        # No date inside, so that equal figures are equal files.
        figure.savefig(folder / name, dpi=_DPI, metadata={"Software": None})
    return sorted(figures)


def _load(curves: list[Curve]) -> Figure:
    figure, (left, right) = _two()
    for curve in curves:
        x = [row.concurrency for row in curve.rows]
        left.plot(x, [row.requests_per_s for row in curve.rows], marker="o", label=curve.label)
        (line,) = right.plot(x, [row.p50_ms for row in curve.rows], marker="o", label=curve.label)
        right.plot(x, [row.p95_ms for row in curve.rows], linestyle=":", color=line.get_color())
    _logs(left, "requests in flight", "requests/s")
    _logs(right, "requests in flight", "ms: p50, dotted p95")
    left.legend(fontsize=8)
    return figure


def _growth(results: Results) -> Figure:
    figure, axes = _two()
    for axis, rows, label in zip(
        axes,
        (results.by_items, results.by_fragments),
        ("items of eight sentences in a call", "fragments of one item"),
        strict=True,
    ):
        x = [one.size for one in rows]
        cold = [(one.size, median(one.cold_ms)) for one in rows if one.cold_ms]
        axis.plot([size for size, _ in cold], [time for _, time in cold], marker="o", label="cold")
        axis.plot(x, [median(one.index_ms) for one in rows], marker="o", label="index")
        axis.plot(x, [median(one.tree_ms) for one in rows], marker="o", label="with trees")
        _logs(axis, label, "ms a call")
    axes[0].legend(fontsize=8)
    return figure


def _memory(soak: Soak) -> Figure:
    figure, (left, right) = _two()
    for name, values in sorted(soak.samples.resident.items(), key=lambda one: -max(one[1])):
        left.plot(soak.samples.requests, values, label=name)
    left.set_ylabel("MiB resident")
    left.legend(fontsize=7, ncols=2)
    right.plot(soak.samples.requests, soak.samples.shm, label="/dev/shm")
    right.set_ylabel("MiB of /dev/shm")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        axis.set_xlabel("requests answered")
        axis.grid(alpha=0.3)
    left.set_ylim(top=1.35 * max(max(values) for values in soak.samples.resident.values()))
    return figure


def _two() -> tuple[Figure, tuple[Axes, Axes]]:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    return figure, (left, right)


def _logs(axis: Axes, x: str, y: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
