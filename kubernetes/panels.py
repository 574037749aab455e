"""Draws the dashboard's panels from a recorded run: a real Prometheus answers their queries, matplotlib draws them.

``python kubernetes/recording.py FOLDER`` records a run; ``python kubernetes/panels.py FOLDER`` draws it into
``docs/images``. Needs Debian's package ``prometheus`` and the client's environment. It stands in for Grafana, which
reads the same file: titles, units, legends and queries are the dashboard's, colours and axes are not Grafana's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

ROOT: Final = Path(__file__).resolve().parents[1]
DASHBOARD: Final = ROOT / "kubernetes" / "canopy" / "files" / "dashboard.json"
RULES: Final = ROOT / "kubernetes" / "canopy" / "files" / "rules.yaml"
IMAGES: Final = ROOT / "docs" / "images"
#: What a recording notes about itself, beside Prometheus' own files.
NOTE: Final = "recording.json"
_START_S: Final = 30.0
_COLUMNS: Final = 3
_MOST_LINES: Final = 10
#: Grafana's unit, and how a value of it is written.
_UNITS: Final = {
    "reqps": "/s", "ops": "/s", "µs": " µs", "s": " s", "ms": " ms", "short": "", "percentunit": " %", "bytes": "B",
    "watt": " W",
}  # fmt: skip


class Line(NamedTuple):
    """One series of a panel: its legend, its moments in seconds from the start, its values."""

    legend: str
    seconds: list[float]
    values: list[float]


class Recording(NamedTuple):
    """A recorded run: Prometheus' folder, begin and end in Unix time, seconds between two scrapes."""

    folder: Path
    start: float
    end: float
    scrape_s: float

    @classmethod
    def load(cls, folder: Path) -> Recording:
        """Read what :mod:`recording` wrote."""
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        return cls(folder, note["start"], note["end"], note["scrape_s"])


@contextmanager
def prometheus(folder: Path, port: int, targets: dict[str, dict[str, str]], scrape_s: float) -> Iterator[str]:
    """A Prometheus of our own on loopback, with the chart's rules; yields its address.

    Args:
        folder: Where it keeps series; those that are there already can be asked for.
        port: A free port.
        targets: Labels by ``host:port`` of what it scrapes; none for one that only answers.
        scrape_s: Seconds between two scrapes, and two evaluations of the rules.

    Raises:
        FileNotFoundError: It is not installed.
        RuntimeError: It does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise FileNotFoundError("prometheus is not installed; Debian's package of that name has it")
    with tempfile.TemporaryDirectory() as temporary:
        config = {
            "global": {"scrape_interval": f"{scrape_s:g}s", "evaluation_interval": f"{scrape_s:g}s"},
            "rule_files": [_rules(Path(temporary), scrape_s)] if targets else [],
            "scrape_configs": [
                {"job_name": labels["app_kubernetes_io_component"],
                 "static_configs": [{"targets": [address], "labels": labels}]}
                for address, labels in targets.items()
            ],
        }  # fmt: skip
        path = Path(temporary) / "prometheus.yml"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [
            program, f"--config.file={path}", f"--storage.tsdb.path={folder}", "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        process = subprocess.Popen(command, env=environment)  # noqa: S603 - a program of the system
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=30)


def _rules(folder: Path, scrape_s: float) -> str:
    """The chart's rules, evaluated as often as is scraped."""
    text = re.sub(r"(?m)^(\s+interval:) .*$", rf"\1 {scrape_s:g}s", RULES.read_text(encoding="utf-8"))
    path = folder / "rules.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{address}/-/ready", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError("prometheus did not start")


def expression(query: str, scrape_s: float) -> str:
    """A panel's query with Grafana's variables filled in: all namespaces, all pods, four scrapes a rate."""
    return (
        query.replace("$__rate_interval", f"{max(4 * scrape_s, 10):g}s")
        .replace("$namespace", ".*")
        .replace("$pod", ".*")
    )  # fmt: skip


def lines_of(address: str, target: dict[str, Any], recording: Recording) -> list[Line]:
    """The series of one query over the whole recording."""
    parameters = {
        "query": expression(target["expr"], recording.scrape_s),
        "start": f"{recording.start:.3f}",
        "end": f"{recording.end:.3f}",
        "step": f"{recording.scrape_s:g}",
    }
    reply = httpx.get(f"{address}/api/v1/query_range", params=parameters, timeout=60, trust_env=False).json()
    if reply["status"] != "success":
        raise RuntimeError(f"{target['expr']}: {reply.get('error')}")
    found = []
    for series in reply["data"]["result"]:
        points = [(float(moment) - recording.start, float(value)) for moment, value in series["values"]]
        real = [(moment, value) for moment, value in points if math.isfinite(value)]
        if real:
            found.append(Line(_legend(target["legendFormat"], series["metric"]), *map(list, zip(*real, strict=True))))
    return found


def _legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), form).strip() or form


def draw(recording: Recording, address: str, out: Path, only: Collection[str] = ()) -> dict[str, int]:
    """Draw each row of the dashboard as one picture, ``dashboard-<row>.png``.

    Args:
        recording: The run.
        address: A Prometheus over its series.
        out: Where the pictures go.
        only: Rows to draw, in small letters; all where none is named.

    Returns:
        Number of series by panel, ``row: title``.
    """
    import matplotlib

    matplotlib.use("Agg")
    counts: dict[str, int] = {}
    for row, panels in rows().items():
        found = [(panel, _panel_lines(address, panel, recording)) for panel in panels]
        counts |= {f"{row}: {panel['title']}": len(lines) for panel, lines in found}
        if not only or row.lower() in only:
            _draw_row(found, out / f"dashboard-{row.lower()}.png")
    return counts


def rows() -> dict[str, list[dict[str, Any]]]:
    """The dashboard's panels by the row that they stand in."""
    found: dict[str, list[dict[str, Any]]] = {}
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            current = found.setdefault(panel["title"], [])
        else:
            current.append(panel)
    return found


def _panel_lines(address: str, panel: dict[str, Any], recording: Recording) -> list[Line]:
    return [line for target in panel["targets"] for line in lines_of(address, target, recording)]


def _draw_row(found: list[tuple[dict[str, Any], list[Line]]], path: Path) -> None:
    from matplotlib import pyplot

    height = -(-len(found) // _COLUMNS)
    figure, axes = pyplot.subplots(
        height, _COLUMNS, figsize=(15, 3.8 * height), squeeze=False, layout="constrained", facecolor="#111217"
    )
    for place, axis in enumerate(axes.ravel()):
        if place < len(found):
            _draw_panel(axis, *found[place])
        else:
            axis.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _draw_panel(axis: Any, panel: dict[str, Any], lines: list[Line]) -> None:
    from matplotlib.ticker import MultipleLocator

    defaults = panel["fieldConfig"]["defaults"]
    axis.set_facecolor("#181b1f")
    axis.set_title(panel["title"], loc="left", color="#ccccdc", fontsize=10, fontweight="bold")
    axis.tick_params(colors="#9a9aac", labelsize=8)
    axis.grid(color="#2c3235", linewidth=0.6)
    for spine in axis.spines.values():
        spine.set_color("#2c3235")
    if not lines:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.text(0.5, 0.5, "No data", transform=axis.transAxes, ha="center", va="center", color="#9a9aac")
        return
    # The busiest first; the rest would only hide each other.
    ordered = sorted(lines, key=lambda line: -max(line.values))
    for line in ordered[:_MOST_LINES]:
        axis.plot(line.seconds, line.values, linewidth=1.3, label=line.legend)
        axis.fill_between(line.seconds, line.values, alpha=0.06)
    axis.set_ylim(bottom=0, top=None if max(ordered[0].values) > 0 else 1)
    axis.xaxis.set_major_locator(MultipleLocator(60))
    axis.yaxis.set_major_formatter(lambda value, _: written(value, defaults["unit"]))
    axis.xaxis.set_major_formatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02d}")
    if len(ordered) > _MOST_LINES:
        axis.plot([], [], alpha=0, label=f"and {len(ordered) - _MOST_LINES} more")
    legend = axis.legend(
        fontsize=7, ncols=3, loc="upper left", bbox_to_anchor=(-0.02, -0.1), frameon=False, handlelength=1.0
    )
    for text in legend.get_texts():
        text.set_color("#ccccdc")


def written(value: float, unit: str) -> str:
    """A value with its unit, as short as it can be told."""
    if unit == "percentunit":
        return f"{value * 100:g} %"
    if unit in ("µs", "s"):
        seconds = value / 1e6 if unit == "µs" else value
        for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(seconds) >= size:
                return f"{seconds / size:.3g} {name}"
        return "0" if not seconds else f"{seconds * 1e6:.3g} µs"
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}{_UNITS.get(unit, '').strip()}"
    return f"{value:.3g}{_UNITS.get(unit, '')}"


def main() -> None:
    """Draw a recording, and say how many series each panel has."""
    from canopy_local.isolation import free_ports

    parser = argparse.ArgumentParser(description="Draw the dashboard's panels from a recorded run.")
    parser.add_argument("folder", type=Path, help="what kubernetes/recording.py wrote")
    parser.add_argument("--out", type=Path, default=IMAGES, help="where the pictures go")
    parser.add_argument("--rows", nargs="*", default=(), metavar="ROW", help="rows to draw; all where none is named")
    given = parser.parse_args()
    recording = Recording.load(given.folder)
    (port,) = free_ports(1)
    with prometheus(recording.folder / "series", port, {}, recording.scrape_s) as address:
        counts = draw(recording, address, given.out, given.rows)
    width = max(map(len, counts))
    print("\n".join(f"{name:<{width}}  {number:>3} series" for name, number in counts.items()))  # noqa: T201


if __name__ == "__main__":
    main()
