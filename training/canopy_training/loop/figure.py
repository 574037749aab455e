"""The figure of a report: what is found against reader tokens, a curve over k for each way."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from canopy_training.evaluation.figures import canvas
from canopy_training.loop.aims import TWO_HOP
from canopy_training.loop.arms import ROUNDS, Arm
from canopy_training.loop.report import Report
from canopy_training.loop.summary import Scope
from canopy_training.loop.tables import FIGURE_FILE

_COLOURS: Final = {"none": "#1f5a91", "titles": "#c98a00", "model": "#c22f2f", "oracle": "#7a7a7a"}
_LABELS: Final = {
    "none": "single round",
    "titles": "loop, titles critic",
    "model": "loop, language model",
    "oracle": "loop, oracle (upper bound)",
}
_PANELS: Final = ((f"items_{ROUNDS}", "questions with all gold items"), (f"recall_{ROUNDS}", "gold fragments"))


def draw(report: Report, folder: Path) -> Path:
    """Draw the figure as PNG into a folder; returns the file."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # at DEBUG it tells of every font of the machine
    file = folder / FIGURE_FILE
    scope = next((one for one in report.scopes if one.name == TWO_HOP), report.scopes[0])
    with canvas(file, 10.0, 4.6, len(_PANELS)) as (figure, axes):
        handles: dict[str, Any] = {}
        for axis, (metric, title) in zip(axes, _PANELS, strict=True):
            handles |= _curves(axis, scope, [one.arm for one in report.arms], metric)
            axis.set_title(f"{title} ({scope.name}, {scope.questions} questions)", fontsize=9)
            axis.set_xlabel("evidence tokens in the reader's prompt, a question")
        axes[0].set_ylabel("found after the last round, %")
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8)
    return file


def _curves(axis: Any, scope: Scope, arms: Iterable[Arm], metric: str) -> dict[str, Any]:
    """One curve for the arms that differ by k alone; k stands at its points."""
    families: dict[str, list[Arm]] = {}
    for arm in arms:
        families.setdefault(arm.family, []).append(arm)
    handles: dict[str, Any] = {}
    for members in families.values():
        ordered = sorted(members, key=lambda arm: arm.k)
        values = [(scope.metrics[arm.name][f"tokens_{ROUNDS}"], scope.metrics[arm.name][metric]) for arm in ordered]
        xs = [x.value for x, y in values if y.value is not None]
        ys = [100 * y.value for _, y in values if y.value is not None]
        style = _style(ordered[0])
        (handles[_label(ordered[0])],) = axis.plot(xs, ys, **style)
        for arm, x, y in zip(ordered, xs, ys, strict=False):
            if len(ordered) == 1 and arm.follow_up_k is None:
                continue
            name = str(arm.k) if arm.follow_up_k is None else f"{arm.k}+{arm.follow_up_k}"
            # Below for arms of their own, which stand where a curve's labels are.
            offset = (4, 4) if arm.follow_up_k is None else (-8, -10)
            axis.annotate(name, (x, y), textcoords="offset points", xytext=offset, fontsize=6.5, color=style["color"])
    return handles


def _style(arm: Arm) -> dict[str, Any]:
    marker = "s" if arm.words else "^" if arm.follow_up_k is not None else "o"
    return {
        "color": "#3c8c5a" if arm.words else _COLOURS[arm.critic],
        "linestyle": "-" if arm.compress else ":",
        "marker": marker,
        "markersize": 4.5,
        "markerfacecolor": None if arm.compress else "white",
        "linewidth": 1.2,
    }


def _label(arm: Arm) -> str:
    name = "single round, BM25 and vectors" if arm.words else _LABELS[arm.critic]
    parts = [name, "" if arm.compress else "items whole", "" if arm.follow_up_k is None else "fewer items later"]
    return ", ".join(part for part in parts if part)
