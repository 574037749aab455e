"""Requests with pictures beside requests of words, through a server with a tiny random Qwen3-VL."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec

from benchmarks import load, pixel_media, workload
from benchmarks.generator import Generator, generator
from benchmarks.server import evidence
from canopy_backend.items import ImageItem, Item, encode_item, has_pictures, without_pictures
from canopy_backend.triton.metrics import PERIOD_S, STAGE_SECONDS
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_local.locking import Report

#: Stages that a first step waits for where an item has pictures.
_WAITED_FOR: Final = ("vision_encoder", "node_encoder")
_FIRST: Final = "hierarchy"
_SERIES: Final = re.compile(rf'^{STAGE_SECONDS}_sum{{[^}}]*stage="([^"]+)"[^}}]*}} (\S+)$', re.MULTILINE)


class Series(msgspec.Struct, frozen=True):
    """One kind of request.

    Attributes:
        label: In words.
        trees: Whether its items bring their trees.
        request_kb: Its items' JSON, in kB.
        rows: By requests in flight.
    """

    label: str
    trees: bool
    request_kb: float
    rows: list[load.Figures]


class Share(msgspec.Struct, frozen=True):
    """Where the time of one kind of request goes, one at a time; milliseconds a request.

    Attributes:
        label: In words.
        request_ms: From the client.
        stage_ms: What the server's stages took.
        waits: Whether the first stage waits for the encoders, as it does for pictures without trees.
    """

    label: str
    request_ms: float
    stage_ms: dict[str, float]
    waits: bool

    @property
    def preprocessing_ms(self) -> float:
        """The first step without the encoders that it waits for: reading items, decoding, patches, planning."""
        waited = sum(self.stage_ms.get(one, 0.0) for one in _WAITED_FOR) if self.waits else 0.0
        return max(0.0, self.stage_ms.get(_FIRST, 0.0) - waited)


@dataclass(frozen=True)
class ServingExtent:
    """Sizes of a run.

    Attributes:
        in_flight: Requests in flight.
        cold, warm: Requests in one of perf_analyzer's three windows.
        shares: Requests of which the stages are read.
        rounds: Times that each point is measured; the median counts.
    """

    in_flight: tuple[int, ...]
    cold: int
    warm: int
    shares: int
    rounds: int


class Served(msgspec.Struct, frozen=True):
    """What a server showed.

    Attributes:
        triton: Its version.
        load: What sent the requests.
        series: Requests by what they bring.
        shares: Where their time goes.
    """

    triton: str
    load: str
    series: list[Series]
    shares: list[Share]


def serve(extent: ServingExtent, report: Report) -> Served:
    """Start a server and measure."""
    query = workload.corpus_questions(1)[0]
    with tempfile.TemporaryDirectory() as temporary:
        report("a tiny random Qwen3-VL")
        model = tiny_qwen3vl(Path(temporary, "qwen3vl-tiny"))
        with (
            evidence("separate", report, model) as server,
            generator(server.url, Path(temporary)) as requests,
        ):
            kinds = _kinds()
            cold = {label: kinds[label] for label in (TEXTS, PICTURES)}
            warm = {label: workload.with_trees(requests.client, items) for label, items in kinds.items()}
            found = [
                _series(requests, query, label, items, trees, extent, report)
                for trees, every in ((False, cold), (True, warm))
                for label, items in every.items()
            ]
            report("stages")
            shares = [
                _share(f"{label}, {'with trees' if trees else 'cold'}", requests, query, items, server.metrics, extent)
                for label, items, trees in (
                    (TEXTS, cold[TEXTS], False),
                    (PICTURES, cold[PICTURES], False),
                    (PICTURES, warm[PICTURES], True),
                )
            ]
            return Served(server.version, requests.name, found, shares)


TEXTS: Final = "ten texts of eight sentences"
PICTURES: Final = "ten pictures of 640 x 480 with a caption"
CAPTIONS: Final = "the same without their pictures"


def _kinds() -> dict[str, list[Item]]:
    texts = workload.passages()
    pictures: list[Item] = [
        ImageItem(
            id=f"picture-{place}",
            title=item.title,
            caption=f"{item.title}, seen from the quay.",
            image=pixel_media.picture_file(pixel_media.photograph(640, 480, place), "JPEG"),
        )
        for place, item in enumerate(texts)
    ]
    return {TEXTS: texts, PICTURES: pictures, CAPTIONS: [without_pictures(item) for item in pictures]}


def _series(
    requests: Generator,
    query: str,
    label: str,
    items: Sequence[Item],
    trees: bool,
    extent: ServingExtent,
    report: Report,
) -> Series:
    report(f"{label}, {'with trees' if trees else 'cold'}")
    count = extent.warm if trees else extent.cold
    rows = [
        load.median_of([requests.compress(query, items, in_flight=at, requests=count) for _ in range(extent.rounds)])
        for at in extent.in_flight
    ]
    return Series(label, trees, sum(len(encode_item(item)) for item in items) / 1000, rows)


def _share(
    label: str, requests: Generator, query: str, items: Sequence[Item], metrics: str, extent: ServingExtent
) -> Share:
    requests.client.compress(query, items)
    before = _settled(metrics)
    start = time.perf_counter()
    for _ in range(extent.shares):
        requests.client.compress(query, items)
    request_ms = 1000 * (time.perf_counter() - start) / extent.shares
    after = _settled(metrics)
    stage_ms = {stage: 1000 * (after[stage] - before.get(stage, 0.0)) / extent.shares for stage in after}
    return Share(label, request_ms, stage_ms, waits=any(has_pictures(item) and item.tree is None for item in items))


def _settled(metrics: str) -> dict[str, float]:
    """Seconds of each stage, once the models have handed over what they counted."""
    time.sleep(2 * PERIOD_S)
    return stage_seconds(httpx.get(metrics, timeout=10, trust_env=False).text)


def stage_seconds(text: str) -> dict[str, float]:
    """Seconds of all requests in each stage, out of a server's metrics; instances are added up."""
    found: dict[str, float] = {}
    for stage, value in _SERIES.findall(text):
        found[stage] = found.get(stage, 0.0) + float(value)
    return found
