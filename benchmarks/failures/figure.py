"""The picture of a long run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.failures.soak import SHM, Soak
from benchmarks.growth import WARM_UP

_DPI: Final = 110


def draw(soak: Soak, path: Path) -> None:
    """Draw memory, descriptors and latency over time.

    Args:
        soak: The run.
        path: File to write.
    """
    figure = Figure(figsize=(11, 8), layout="constrained")
    memory, shares, files, latency = figure.subplots(2, 2).ravel()
    minutes = np.asarray(soak.seconds) / 60
    for name, values in soak.memory.items():
        memory.plot(minutes, values, label=name, linewidth=1)
        base = soak.ends(values)[0] or 1.0
        shares.plot(minutes, 100 * (np.asarray(values) / base - 1), linewidth=1)
    memory.set_yscale("log")
    _labels(memory, "resident memory, MiB", f"memory; {SHM} as allocated")
    memory.legend(fontsize=6, ncols=2)
    shares.set_ylim(-15, 15)
    shares.axhspan(-5, 5, color="0.9")
    shares.axvline(WARM_UP * soak.minutes, color="0.6", linestyle=":")
    _labels(shares, "%", "memory against the tenth after the warm-up")
    for open_files in soak.descriptors.values():
        files.plot(minutes, open_files, linewidth=1)
    _labels(files, "open descriptors", "descriptors by process")
    for kind, rows in soak.quantiles.items():
        x = [row[0] / 60 for row in rows]
        (line,) = latency.plot(x, [row[1] for row in rows], marker=".", label=kind)
        latency.plot(x, [row[2] for row in rows], linestyle=":", color=line.get_color())
    latency.set_yscale("log")
    _labels(latency, "ms", "latency: p50, dotted p95")
    latency.legend(fontsize=7)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _labels(axis: Axes, y: str, title: str) -> None:
    axis.set_xlabel("minutes")
    axis.set_ylabel(y)
    axis.set_title(title, fontsize=10)
