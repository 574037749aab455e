"""The figures of a report. matplotlib is imported when they are drawn and not before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from canopy_training.evaluation.metrics import LevelScores
from canopy_training.evaluation.report import Report, SystemReport
from canopy_training.evaluation.sweeps import GIVEN, RULE, SweepReport

LEVELS_FILE: Final = "levels.png"
RECALL_FILE: Final = "recall_against_tokens.png"
ACCURACY_FILE: Final = "decision_accuracy.png"

_GOLD: Final = "#c98a00"
_OTHER: Final = "#7a7a7a"
_BEFORE: Final = "#9db4c8"
_AFTER: Final = "#1f5a91"
_CURVES: Final = {
    "top_leaves": ("best m leaves of each item", "#1f5a91", "-"),
    "leaf_percentile": ("percentile of each item's leaves (SentenceEmbeddingOptimizer)", "#1f5a91", "--"),
    "leaf_threshold": ("leaves over a score (EmbeddingsFilter)", "#3c8c5a", "-"),
    "top_of_question": ("best n leaves of all items (RECOMP)", "#8a5a9e", "-"),
    "top_of_question_each": ("the same, and the best leaf of every item", "#8a5a9e", "--"),
}
_POINTS: Final = {
    RULE: ("the rule", "#c22f2f", "o"),
    "best_leaf": ("best leaf", "#404040", "v"),
    "best_node": ("best node", "#404040", "s"),
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw all figures of a report as PNG into a folder.

    Returns:
        The files.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # at DEBUG it tells of every font of the machine
    files = {LEVELS_FILE: _levels, RECALL_FILE: _recall, ACCURACY_FILE: _accuracy}
    for name, paint in files.items():
        paint(report, folder / name)
    return [folder / name for name in files]


@contextmanager
def canvas(file: Path, width: float, height: float, panels: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """A figure with its panels side by side, saved at the end."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
    }
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
        yield figure, list(axes)
        # Software and date would make equal reports differ.
        figure.savefig(file, dpi=130, metadata={"Software": None})


def _levels(report: Report, file: Path) -> None:
    """Root-relative scores of gold and other nodes by level, a panel an encoder."""
    with canvas(file, 4.2 * len(report.systems), 3.6, len(report.systems)) as (figure, axes):
        handles: dict[str, Any] = {}
        for axis, system in zip(axes, report.systems, strict=True):
            handles |= _boxes(axis, system)
        axes[0].set_ylabel("score less the root's")
        figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=2, fontsize=8)


def _boxes(axis: Any, system: SystemReport) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for gold, colour, label in ((True, _GOLD, "holds gold"), (False, _OTHER, "holds none")):
        levels: list[LevelScores] = [level for level in system.levels if level.gold == gold]
        if not levels:
            continue
        boxes = [
            dict(zip(("whislo", "q1", "med", "q3", "whishi"), level.quantiles, strict=True), fliers=[])
            for level in levels
        ]
        places = [level.depth + (-0.19 if gold else 0.19) for level in levels]
        drawn = axis.bxp(boxes, positions=places, widths=0.32, showfliers=False, patch_artist=True, manage_ticks=False)
        for box in drawn["boxes"]:
            box.set(facecolor=colour, edgecolor="none", alpha=0.75)
        for part in (*drawn["whiskers"], *drawn["caps"]):
            part.set(color=colour, linewidth=1)
        for line in drawn["medians"]:
            line.set(color="black", linewidth=1.2)
        handles[label] = drawn["boxes"][0]
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_title(f"{system.card.name}: nodes of gold items", fontsize=9)
    axis.set_xlabel("level below the root (box: quartiles, whiskers: 10 % to 90 %)")
    axis.set_xticks(sorted({level.depth for level in system.levels}))
    return handles


def _recall(report: Report, file: Path) -> None:
    """Recall against kept tokens with the last encoder, the rule and the sweeps; all shown items, then gold ones."""
    pool = report.scopes[0].name
    system = report.systems[-1].card.name
    known = {sweep.scope for sweep in report.sweeps}
    panels = [(scope, title) for scope, title in ((pool, "all shown items"), (pool + GIVEN, "gold items alone"))]
    panels = [panel for panel in panels if panel[0] in known]
    with canvas(file, 4.6 * len(panels) + 0.4, 4.3, len(panels)) as (figure, axes):
        handles: dict[str, Any] = {}
        for axis, (scope, title) in zip(axes, panels, strict=True):
            own = {one.selector: one for one in report.sweeps if (one.scope, one.system) == (scope, system)}
            handles |= _curves(axis, own)
            axis.set_title(f"{system} encoder, {title}", fontsize=9)
            axis.set_xlabel("kept tokens, % of the whole items")
        axes[0].set_ylabel("gold fragments left, %")
        axes[0].set_ylim(0, 102)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=8)


def _curves(axis: Any, sweeps: dict[str, SweepReport]) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    whole = sweeps["whole"].tokens[0] or 1.0
    for name, (label, colour, style) in _CURVES.items():
        shares = [100 * tokens / whole for tokens in sweeps[name].tokens]
        recalls = [100 * recall for recall in sweeps[name].recalls]
        (handles[label],) = axis.plot(shares, recalls, style, color=colour, linewidth=1.3)
    for name, (label, colour, marker) in _POINTS.items():
        x, y = 100 * sweeps[name].tokens[0] / whole, 100 * sweeps[name].recalls[0]
        size = 8 if name == RULE else 6
        (handles[label],) = axis.plot([x], [y], marker, color=colour, markersize=size, linestyle="none", zorder=5)
    axis.set_xlim(0, 101)
    return handles


def _accuracy(report: Report, file: Path) -> None:
    """Decision accuracy of each encoder, a group a data set, with intervals."""
    scopes = [scope for scope in report.scopes if scope.kind in ("all", "dataset")]
    names = [system.card.name for system in report.systems]
    colours = [_BEFORE, _AFTER][-len(names) :]
    with canvas(file, max(4.5, 0.85 * len(scopes) + 1.5), 3.2) as (_, (axis,)):
        for at, (name, colour) in enumerate(zip(names, colours, strict=True)):
            shown = [
                (place, scope.metrics[name]["decision_accuracy"])
                for place, scope in enumerate(scopes)
                if scope.metrics[name]["decision_accuracy"].value is not None
            ]
            width = 0.8 / len(names)
            places = [place + (at - (len(names) - 1) / 2) * width for place, _ in shown]
            values = [100 * (one.value or 0) for _, one in shown]
            ends = [(one.low, one.high) for _, one in shown]
            below = [value - 100 * (low or 0) for value, (low, _) in zip(values, ends, strict=True)]
            above = [100 * (high or 0) - value for value, (_, high) in zip(values, ends, strict=True)]
            axis.bar(places, values, width * 0.94, color=colour, label=name)
            axis.errorbar(places, values, [below, above], fmt="none", ecolor="#303030", elinewidth=0.9, capsize=2)
        axis.set_xticks(range(len(scopes)), [scope.name for scope in scopes], rotation=30, ha="right")
        axis.grid(visible=False, axis="x")
        axis.set_ylabel("right decisions, %")
        axis.legend(loc="upper right", ncols=len(names), fontsize=8)
        axis.set_ylim(0, 100)
