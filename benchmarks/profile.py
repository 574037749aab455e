"""Where the time of a request with trees goes, to the microsecond: ``python -m benchmarks.profile``.

The server's side comes from its statistics endpoint, the last step's from the same code in this process, function by
function. Starts a server of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferenceServerClient

from benchmarks import workload
from benchmarks.encoder import Repository
from benchmarks.generator import Generator, generator
from benchmarks.machine import machine
from benchmarks.server import Server, evidence
from benchmarks.timing import median_ms
from canopy_backend.evidence import assemble_many, encode_evidence
from canopy_backend.items import Item, encode_item
from canopy_backend.limits import Limits
from canopy_backend.plan import indexed_trees
from canopy_backend.refinement import refine_many, score_many
from canopy_backend.triton.items import read_items
from canopy_backend.triton.tensors import string_array
from canopy_training.evaluation.tables import table

PAGE: Final = workload.ROOT / "docs" / "results" / "profile.md"
#: Models on the way, in order.
_STEPS: Final = ("tokenizer", "query_encoder", "refinement")
#: What the server counts of each, by the words of the table.
_PARTS: Final = ("queue", "compute_input", "compute_infer", "compute_output")


class Stage(msgspec.Struct, frozen=True):
    """One model's share of a request, in microseconds: waiting, tensors in, the model's process, tensors out."""

    name: str
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float


def stages(url: str, call: Callable[[], object], requests: int) -> tuple[list[Stage], float]:
    """What the server counts a request, one after another, and the median round trip in microseconds."""
    call()
    before = _counted(url)
    times = []
    for _ in range(requests):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    after = _counted(url)
    found = [
        Stage(name, *((after[name][part] - before[name][part]) / requests / 1000 for part in _PARTS)) for name in _STEPS
    ]
    return found, 1e6 * float(np.median(times))


def _counted(url: str) -> dict[str, dict[str, int]]:
    """Nanoseconds of each part since the server's start, by model; a cache hit has no compute."""
    with InferenceServerClient(url) as client:
        answer = client.get_inference_statistics()
    return {
        model.name: {part: int(getattr(model.inference_stats, part).ns) for part in _PARTS}
        for model in answer.model_stats
    }


def functions(
    items: Sequence[Item], query: npt.NDArray[np.float32], repository: Repository, repeats: int
) -> dict[str, float]:
    """Microseconds of each function of the last step, median of ``repeats`` calls, in this process."""
    limits, revision = Limits(), repository.manifest.revision
    payloads = string_array([encode_item(item) for item in items])
    trees = indexed_trees(items, revision=revision, dimension=len(query), counter=repository.counter, limits=limits)
    hierarchies = [tree.hierarchy for tree in trees]
    vectors = [tree.vectors for tree in trees]
    fragments, tokens = [tree.fragments for tree in trees], [tree.tokens for tree in trees]
    offsets = np.cumsum([0, *(one.size for one in hierarchies)], dtype=np.int32)
    parents = np.concatenate([one.parent for one in hierarchies])
    scores = score_many(vectors, query)
    kept = refine_many(parents, offsets, scores)
    written, _ = assemble_many(items, fragments, hierarchies, kept, scores, tokens)
    calls: dict[str, Callable[[], Any]] = {
        "items from JSON, trees from base64 (`read_items`)": lambda: read_items(payloads, limits),
        "trees checked and laid out (`indexed_trees`)": lambda: indexed_trees(
            items, revision=revision, dimension=len(query), counter=repository.counter, limits=limits
        ),
        "scores (`score_many`)": lambda: score_many(vectors, query),
        "walk (`refine_many`)": lambda: refine_many(parents, offsets, scores),
        "regions and their text (`assemble_many`)": lambda: assemble_many(
            items, fragments, hierarchies, kept, scores, tokens
        ),
        "evidence to JSON (`encode_evidence`)": lambda: [encode_evidence(one) for one in written],
    }
    return {label: 1000 * median_ms(call, repeats) for label, call in calls.items()}


def profile(server: Server, requests: Generator, number: int) -> str:
    """The page as Markdown."""
    items = workload.with_trees(requests.client, workload.passages())
    query = workload.corpus_questions(1)[0]
    repository = Repository(server.repository)
    found, trip = stages(server.url, lambda: requests.client.compress(query, items), number)
    inside = functions(items, requests.client.embed_query([query])[0], repository, 300)
    perf = requests.compress(query, items, in_flight=1, requests=number)
    rows = [[f"`{one.name}`", *(f"{getattr(one, part):.0f}" for part in _PARTS), f"{_sum(one):.0f}"] for one in found]
    counted = sum(_sum(one) for one in found)
    lines = [
        "# Where the time of a request goes",
        "",
        f"Ten items of eight sentences with trees ({workload.tree_bytes(items) / 1000:.0f} kB of them), a query that "
        f"the server has seen, one request at a time, {number} of them. Machine: {machine()}; Triton {server.version}. "
        "Command: `python -m benchmarks.profile --write`.",
        "",
        "On the server, microseconds a request, from its statistics endpoint:",
        "",
        table(["step", "queue", "tensors in", "process", "tensors out", "sum"], rows),
        "",
        f"All steps: {counted:.0f} µs. The round trip, median: {1000 * perf.p50_ms:.0f} µs from the load generator, "
        f"{trip:.0f} µs from the Python client, which also writes the items' JSON and reads the evidence. What no step "
        "counts is gRPC, copies of the request, and the ensemble handing tensors on.",
        "",
        "In the process of `refinement`, the same code function by function, microseconds:",
        "",
        table(
            ["function", "µs", "share"],
            [[name, f"{took:.0f}", f"{100 * took / sum(inside.values()):.0f} %"] for name, took in inside.items()],
        ),
        "",
        f"Together {sum(inside.values()):.0f} µs.",
        "",
    ]
    return "\n".join(lines)


def _sum(stage: Stage) -> float:
    return float(sum(getattr(stage, part) for part in _PARTS))


def main() -> None:
    """Start a server, profile it, print the page; write it with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(workload.ROOT)}")
    options = parser.parse_args()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        evidence("separate", report) as server,
        generator(server.url, Path(folder)) as requests,
    ):
        text = profile(server, requests, options.requests)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
