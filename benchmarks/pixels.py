"""Items with pixels: ``python -m benchmarks.pixels --write`` writes docs/results/pixels.md.

What the host does for them beside what the encoder would take on a GPU, what seeking in a clip saves, and requests with
pictures through a server with a tiny random Qwen3-VL, which the bench makes itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
from PIL import __version__ as pillow_version

from benchmarks import pixel_host, pixel_serving, pixel_shortcuts, workload
from benchmarks.machine import machine
from benchmarks.pixel_host import HostExtent
from benchmarks.pixel_page import PixelResults, page
from benchmarks.pixel_serving import ServingExtent

PAGE: Final = workload.ROOT / "docs" / "results" / "pixels.md"

HOST: Final = HostExtent(
    repeats=5, megapixels=(0.3, 1, 2, 12), clips=(30, 120, 300), seek_s=120, keys_s=(2, 10), rate=25
)
QUICK_HOST: Final = HostExtent(repeats=1, megapixels=(1, 12), clips=(30, 300), seek_s=10, keys_s=(10,), rate=25)
SERVING: Final = ServingExtent(in_flight=(1, 2, 4), cold=10, warm=200, shares=20, rounds=3)
QUICK_SERVING: Final = ServingExtent(in_flight=(1, 2), cold=1, warm=10, shares=2, rounds=1)


def measure(*, quick: bool) -> PixelResults:
    """Everything that the page shows."""
    host, serving = (QUICK_HOST, QUICK_SERVING) if quick else (HOST, SERVING)
    _report("pictures on the host")
    items = list(pixel_host.images(host))
    _report("clips on the host")
    items += pixel_host.clips(host)
    _report("shortcuts")
    shortcuts = pixel_shortcuts.shortcuts(host.repeats)
    _report("clips by seeking")
    seeking = list(pixel_host.seeking(host))
    return PixelResults(
        machine=machine(),
        busy=os.getloadavg()[1],
        pillow=pillow_version,
        quick=quick,
        host=items,
        shortcuts=shortcuts,
        seeking=seeking,
        served=pixel_serving.serve(serving, _report),
    )


def _report(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, and write the page where asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pixels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, under two minutes")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(workload.ROOT)} and its figures")
    parser.add_argument("--again", type=Path, help="make the page from an earlier run's pixels.json, measure nothing")
    given = parser.parse_args()
    if given.again:
        results = msgspec.json.decode(given.again.read_bytes(), type=PixelResults)
    else:
        results = measure(quick=given.quick)
    text = page(results)
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
        PAGE.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


if __name__ == "__main__":
    main()
