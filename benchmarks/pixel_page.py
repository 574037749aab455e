"""The page of the bench of pixels, from its results alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from benchmarks.estimate import PEAKS, SHARE
from benchmarks.pixel_host import Host, Seeking
from benchmarks.pixel_serving import CAPTIONS, PICTURES, Series, Served, Share
from benchmarks.pixel_shortcuts import Shortcut
from canopy_training.evaluation.tables import table

#: Stages in the order of a request, as the server calls them.
_STAGES: Final = ("hierarchy", "vision_encoder", "node_encoder", "query_encoder", "refinement")


class PixelResults(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run.

    Attributes:
        machine: Processor, cores, memory.
        busy: Load average over the last five minutes, the bench's own load included.
        pillow: Its version.
        quick: Whether runs were short.
        host: What the host does for an item.
        shortcuts: Quicker ways to a smaller picture.
        seeking: Clips by seeking and whole.
        served: Requests through a server.
    """

    machine: str
    busy: float
    pillow: str
    quick: bool
    host: list[Host]
    shortcuts: list[Shortcut]
    seeking: list[Seeking]
    served: Served


def page(results: PixelResults) -> str:
    """The page as Markdown."""
    command = f"python -m benchmarks.pixels {'--quick ' if results.quick else ''}--write"
    short = " Runs were short." if results.quick else ""
    parts = [
        "# Items with pixels",
        f"Machine: {results.machine}; load average {results.busy:.1f} over the last five minutes, the bench's own "
        f"load included. Pillow {results.pillow}, Triton {results.served.triton}. Command: `{command}`.{short}",
        _host(results.host),
        _shortcuts(results.shortcuts),
        _seeking(results.seeking),
        _series(results.served),
        _shares(results.served.shares),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _host(items: Sequence[Host]) -> str:
    header = ["item", "files", "MB", "decode", "resize", "patches", "grids", "host, ms",
              *(f"{gpu}, ms" for gpu in PEAKS), *(f"ratio {gpu}" for gpu in PEAKS)]  # fmt: skip
    rows = [
        [one.label, one.form, f"{one.file_mb:.1f}{'' if one.sent else ' *'}",
         *map(_ms, (one.decode_ms, one.resize_ms, one.patch_ms, one.grid_ms, one.ms)),
         *(_ms(one.encoder_ms[gpu]) for gpu in PEAKS), *(f"{one.ratio(gpu):.2f}" for gpu in PEAKS)]
        for one in items
    ]  # fmt: skip
    text = (
        "What the host does for one item in `compress` without a tree, in milliseconds of processor time of one core, "
        "beside what tower and node encoder take for it at the size of Qwen3-VL-Embedding-2B: an estimate from "
        f"parameter counts at {100 * SHARE:.0f} % of a GPU's peak (`python -m benchmarks.estimate`), not a "
        "measurement. The ratio is host over encoder: how many cores one GPU needs that does nothing else. Items with "
        "their trees need none of it."
    )
    star = "\\* Over `max_picture_bytes`: written smaller where items are made, so no server sees such a file."
    note = "" if all(one.sent for one in items) else f"\n\n{star}"
    return f"## Host and encoder\n\n{text}\n\n{table(header, rows)}{note}\n\n{_verdicts(items)}"


def _verdicts(items: Sequence[Host]) -> str:
    """The aim, a line a GPU, over what a server is sent."""
    items = [one for one in items if one.sent]
    lines = []
    for gpu in PEAKS:
        over = [one for one in items if one.ratio(gpu) > 1]
        worst = max(items, key=lambda one: one.ratio(gpu))
        cores = f"{math.ceil(worst.ratio(gpu))} core{'s' if worst.ratio(gpu) > 1 else ''}"
        if over:
            told = "; ".join(f"{_named(one)} ({one.ratio(gpu):.1f})" for one in over)
            lines.append(
                f"- {gpu}: **missed** by {len(over)} of {len(items)}: {told}. {cores} keep it busy with any of them."
            )
        else:
            lines.append(f"- {gpu}: met by all {len(items)}. {cores} keeps it busy with any of them.")
    aim = "Aim: one core's preprocessing takes no longer than the encoder, for every item that a server is sent."
    return aim + "\n\n" + "\n".join(lines)


def _named(one: Host) -> str:
    """What a verdict calls an item: clips are JPEG frames always."""
    return f"{one.label}, {one.form}" if one.label.startswith("image") else one.label


def _shortcuts(ways: Sequence[Shortcut]) -> str:
    header = ["a JPEG of 12 megapixels, file to pixels", "ms", "numbers changed", "mean, levels of 255", "most"]
    rows = [[one.label, _ms(one.ms), f"{100 * one.changed:.1f} %", f"{one.mean:.2f}", str(one.most)] for one in ways]
    text = (
        "What Pillow's own means would save on a large picture. The encoder would be shown other pixels than its "
        "processor shows it (patches are within 2e-6 of that today, a level of 255 is 8e-3), so none is used; a "
        "picture that is made smaller where it is indexed costs the server none of this."
    )
    return f"## Shortcuts that are not taken\n\n{text}\n\n{table(header, rows)}"


def _seeking(clips: Sequence[Seeking]) -> str:
    header = ["clip", "frames", "decoded", "taken", "by seeking, ms", "all decoded, ms", "ratio"]
    rows = [
        [one.label, f"{one.frames:,}", str(one.decoded), str(one.taken), _ms(one.seek_ms), _ms(one.all_ms),
         f"{one.ratio:.1f}"]
        for one in clips
    ]  # fmt: skip
    text = (
        "Where items are made: the frames of a clip by reading its packets, seeking, decoding, scaling and writing "
        "JPEG, against decoding every frame and nothing else; milliseconds of processor time of one core."
    )
    return f"## Clips by seeking\n\n{text}\n\n{table(header, rows)}"


def _series(served: Served) -> str:
    rows = []
    for one in served.series:
        for place, row in enumerate(one.rows):
            rows.append(
                [
                    f"{one.label}, {'with trees' if one.trees else 'cold'}" if not place else "",
                    f"{one.request_kb:.0f}" if not place else "",
                    str(row.concurrency),
                    f"{row.requests_per_s:.1f}",
                    _ms(row.p50_ms),
                    _ms(row.p95_ms),
                ]
            )
    header = ["`compress`", "request, kB", "in flight", "requests/s", "p50 ms", "p95 ms"]
    text = (
        f"By {served.load}, with a tiny random Qwen3-VL on the CPU. Its vision tower takes next to nothing, so what "
        "pictures cost here is what stands around it: bytes, decoding, calls between processes. Cold texts have some "
        "fifteen nodes each, and show what a CPU takes for attention over rows of 2,048 tokens. None of this says "
        "anything about a real model's times."
    )
    return f"## Through a server\n\n{text}\n\n{table(header, rows)}{_bytes(served.series)}"


def _bytes(series: Sequence[Series]) -> str:
    """What pictures cost a request whose items bring their trees."""
    warm = {one.label: one for one in series if one.trees}
    if PICTURES not in warm or CAPTIONS not in warm:
        return ""
    seen, told = warm[PICTURES], warm[CAPTIONS]
    more_kb, more_ms = seen.request_kb - told.request_kb, seen.rows[0].p50_ms - told.rows[0].p50_ms
    return (
        f"\n\nWith trees nothing is decoded and the vision tower is not asked: ten pictures of {more_kb:.0f} kB as "
        f"base64 cost {more_ms:+.2f} ms at the median, one request at a time, which is to carry, parse and hash those "
        f"bytes: {1000 * more_ms / max(more_kb, 1e-9):.1f} µs a kB."
    )


def _shares(shares: Sequence[Share]) -> str:
    header = ["one at a time, ms a request", "request", *_STAGES, "preprocessing", "share"]
    rows = [
        [one.label, _ms(one.request_ms), *(_ms(one.stage_ms.get(stage, 0.0)) for stage in _STAGES),
         _ms(one.preprocessing_ms), f"{100 * one.preprocessing_ms / one.request_ms:.0f} %"]
        for one in shares
    ]  # fmt: skip
    text = (
        "By the server's own `canopy_stage_seconds`, from a Python client. `hierarchy` waits for the vision tower and "
        "the node encoder where an item has pictures, so preprocessing is what is left of it without them: items "
        "read, pictures decoded, resized and cut, rows packed, tensors carried between processes. For texts the node "
        "encoder runs after it, and preprocessing is all of it."
    )
    return f"## Where a request's time goes\n\n{text}\n\n{table(header, rows)}"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
