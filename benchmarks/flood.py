"""Many more requests at once than the server can answer in time: what becomes of them.

``python -m benchmarks.flood`` starts a server of its own. Senders are processes, so that they are faster than the
server.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks import workload
from benchmarks.generator import generator
from benchmarks.server import evidence
from canopy_backend.items import Item, encode_item
from canopy_client.channels import channel_options
from canopy_client.codec import compress_request

#: Processes that send, and the longest wait of one request in seconds.
_SENDERS: Final = 2
_LONGEST_S: Final = 120.0


class Flood(msgspec.Struct, frozen=True):
    """What became of requests that were all sent at once.

    Attributes:
        requests: How many.
        seconds: Until the last of them had its answer.
        answers: Number by status.
        latest_s: Longest wait for an answer, by status.
        after_ms: The next request alone, when all had theirs.
    """

    requests: int
    seconds: float
    answers: dict[str, int]
    latest_s: dict[str, float]
    after_ms: float


def flood(url: str, query: str, items: Sequence[Item], requests: int) -> Flood:
    """Send the same request ``requests`` times at once.

    Args:
        url: ``host:port`` of gRPC.
        query: Their query.
        items: Their items.
        requests: How many.
    """
    message = compress_request(query, [encode_item(item) for item in items]).SerializeToString()
    shares = [len(part) for part in np.array_split(np.arange(requests), _SENDERS)]
    _send(url, message, 1)
    with ProcessPoolExecutor(_SENDERS, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_send, [url] * _SENDERS, [message] * _SENDERS, [1] * _SENDERS))
        start = time.perf_counter()
        parts = list(pool.map(_send, [url] * _SENDERS, [message] * _SENDERS, shares))
        took = time.perf_counter() - start
    ((_, after),) = _send(url, message, 1)
    found = [answer for part in parts for answer in part]
    kinds = sorted({status for status, _ in found})
    waits = {kind: [wait for status, wait in found if status == kind] for kind in kinds}
    return Flood(
        requests,
        took,
        {kind: len(own) for kind, own in waits.items()},
        {kind: max(own) for kind, own in waits.items()},
        1000 * after,
    )


def _send(url: str, message: bytes, requests: int) -> list[tuple[str, float]]:
    """Status and seconds of each of ``requests`` calls that begin together."""
    request = service_pb2.ModelInferRequest.FromString(message)

    async def one(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> tuple[str, float]:
        start = time.perf_counter()
        status = "OK"
        try:
            await stub.ModelInfer(request, timeout=_LONGEST_S)
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        return status, time.perf_counter() - start

    async def every() -> list[tuple[str, float]]:
        async with grpc.aio.insecure_channel(url, options=channel_options(url)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return await asyncio.gather(*(one(stub) for _ in range(requests)))

    return asyncio.run(every())


def main() -> None:
    """Start a server, flood it, and print what became of the requests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    options = parser.parse_args()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        evidence("separate", report) as server,
        generator(server.url, Path(folder)) as requests,
    ):
        items = workload.with_trees(requests.client, workload.passages())
        found = flood(server.url, workload.corpus_questions(1)[0], items, options.requests)
    print(f"{found.requests} requests of ten items with trees at once, all answered after {found.seconds:.1f} s")
    for status, number in found.answers.items():
        print(f"{status}: {number}, the last after {found.latest_s[status]:.1f} s")
    print(f"the next one, alone: {found.after_ms:.1f} ms")


if __name__ == "__main__":
    main()
