"""The dashboard's panels, drawn from series of known values that a real Prometheus answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_files import ROOT

pytest.importorskip("matplotlib", reason="matplotlib is not installed: it draws the panels")
pytest.importorskip("httpx", reason="httpx is not installed: it asks Prometheus")
sys.path.insert(0, str(ROOT / "kubernetes"))

import panels

from canopy_local.isolation import free_ports

START = 1_790_000_000
SECONDS = 240


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> panels.Recording:
    """Ten requests a second of one model, of which a tenth fails."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("no prometheus: Debian's package of that name has it")
    folder = tmp_path_factory.mktemp("recording")
    series = {
        'nv_inference_request_success{model="compress",namespace="s",pod="e-0"}': 9.0,
        'nv_inference_request_failure{model="compress",reason="OTHER",namespace="s",pod="e-0"}': 1.0,
    }
    lines = []
    for name, rate in series.items():
        # Gauges to this format, in which counters end in _total as Triton's do not; Prometheus keeps no difference.
        lines.append(f"# TYPE {name.partition('{')[0]} gauge")
        lines += [f"{name} {rate * second:g} {START + second}" for second in range(0, SECONDS + 1, 2)]
    (folder / "run.om").write_text("\n".join([*lines, "# EOF\n"]), encoding="utf-8")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "run.om"), str(folder / "series")]
    subprocess.run(made, check=True, capture_output=True)
    (folder / panels.NOTE).write_text(json.dumps({"start": START, "end": START + SECONDS, "scrape_s": 2.0}))
    return panels.Recording.load(folder)


@pytest.fixture(scope="module")
def address(recording: panels.Recording) -> Iterator[str]:
    (port,) = free_ports(1)
    with panels.prometheus(recording.folder / "series", port, {}, recording.scrape_s) as one:
        yield one


def panel(row: str, title: str) -> dict[str, object]:
    return next(one for one in panels.rows()[row] if one["title"] == title)


def test_a_panel_shows_what_was_recorded(recording: panels.Recording, address: str) -> None:
    (line,) = panels.lines_of(address, panel("Service", "Requests")["targets"][0], recording)
    assert line.legend == "compress"
    assert line.values[-1] == pytest.approx(9.0)
    assert 0 < line.seconds[0] < line.seconds[-1] <= SECONDS
    (failed,) = panels.lines_of(address, panel("Service", "Failures by reason")["targets"][0], recording)
    assert (failed.legend, failed.values[-1]) == ("compress OTHER", pytest.approx(1.0))


def test_every_row_becomes_a_picture(recording: panels.Recording, address: str, tmp_path: Path) -> None:
    counts = panels.draw(recording, address, tmp_path)
    assert {path.stem.removeprefix("dashboard-") for path in tmp_path.glob("*.png")} == {
        row.lower() for row in panels.rows()
    }
    assert counts["Service: Requests"] == 1
    assert counts["Machines: GPU"] == 0
    assert len(counts) == sum(map(len, panels.rows().values()))


def test_a_query_without_an_answer_is_an_error(recording: panels.Recording, address: str) -> None:
    with pytest.raises(RuntimeError, match="parse error"):
        panels.lines_of(address, {"expr": "rate(", "legendFormat": ""}, recording)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "percentunit", "25 %"), (1500.0, "µs", "1.5 ms"), (0.002, "s", "2 ms"), (2.0, "s", "2 s"),
        (0.0, "s", "0"), (12000.0, "reqps", "12 k/s"), (3.0, "short", "3"), (2e9, "bytes", "2 GB"),
        (3e-7, "s", "0.3 µs"), (4.0, "ms", "4 ms"),
    ],
)  # fmt: skip
def test_values_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    assert panels.written(value, unit) == text


def test_variables_are_filled_in() -> None:
    query = 'sum(rate(x{namespace=~"$namespace",pod=~"$pod"}[$__rate_interval]))'
    assert panels.expression(query, 15.0) == 'sum(rate(x{namespace=~".*",pod=~".*"}[60s]))'
