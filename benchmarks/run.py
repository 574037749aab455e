"""Throughput, latency and memory of the evidence server on this machine; ``make bench`` runs it.

Starts an evidence server of its own on free ports, so that nothing else answers. Prints a Markdown page, and writes
the same to ``docs/results/bench.md`` with ``--write``.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import tempfile
from pathlib import Path

from benchmarks import inprocess, load, memory, workload
from canopy_client import CanopyClient
from canopy_local import stack
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings

CONCURRENCIES = [1, 2, 4]
PAGE = workload.ROOT / "docs" / "results" / "bench.md"


def main() -> None:
    """Run every measurement and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(workload.ROOT)} as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = isolated(StackSettings.from_environment(), Path(folder, "home"))
        with stack.running(settings, servers=["evidence"], report=print) as status:
            page = _page(settings, status.servers[0].pid, status.servers[0].version, quick=options.quick)
    print(page)
    if options.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page + "\n", encoding="utf-8")


def _page(settings: StackSettings, pid: int, version: str, *, quick: bool) -> str:
    url = f"{settings.host}:{settings.grpc_port}"
    program = load.find_perf_analyzer()
    with CanopyClient(url, deadline_s=120) as client:
        cold = workload.passages()
        warm = workload.with_trees(client, cold)
        query, queries = workload.questions()[0], workload.questions()
        before = memory.measure(pid)
        tables = _tables(client, url, program, query, queries, cold, warm, quick=quick)
        after = memory.measure(pid)
    alone = inprocess.measure(
        settings.model_repository, cold, query, threads=os.cpu_count() or 1, repeats=3 if quick else 10
    )
    first = {name: rows[0] for name, rows in tables.items()}
    generator = "perf_analyzer" if program else "the built-in load generator (no perf_analyzer found)"
    lines = [
        "# Bench of the local stack",
        "",
        f"Machine: {_machine()}. Triton {version}, profile `embedded`. Load: {generator} over gRPC on loopback.",
        f"Items: {len(cold)} passages of {workload.SENTENCES} sentences; their trees add "
        f"{workload.tree_bytes(warm) / 1000:.0f} kB to a request. Command: `make bench`.",
        "",
        "| call | concurrency | requests/s | items/s | p50 ms | p95 ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in tables.items():
        items = len(cold) if name.startswith("compress") else 1
        lines += [
            f"| {name} | {row.concurrency} | {row.requests_per_s:.1f} | {row.requests_per_s * items:.0f} "
            f"| {row.p50_ms:.2f} | {row.p95_ms:.2f} |"
            for row in rows
        ]
    cold_ms, warm_ms = first["compress, cold"].p50_ms, first["compress, with trees"].p50_ms
    lines += [
        "",
        "| in this process, ONNX Runtime | ms | tokens computed | of them real |",
        "| --- | --- | --- | --- |",
        f"| all nodes, packed rows | {alone.packed_ms:.0f} | {alone.packed_tokens} "
        f"| {alone.real_tokens / alone.packed_tokens:.0%} |",
        f"| all nodes, one padded batch | {alone.padded_ms:.0f} | {alone.padded_tokens} "
        f"| {alone.real_tokens / alone.padded_tokens:.0%} |",
        f"| one query | {alone.query_ms:.2f} | | |",
        "",
        "| ratio, this run, concurrency 1 | |",
        "| --- | --- |",
        f"| cold compress over the encoder alone on the same rows | {cold_ms / alone.packed_ms:.2f} |",
        f"| one padded batch over cold compress, whole call | {alone.padded_ms / cold_ms:.2f} |",
        f"| one padded batch over compress with trees, whole call | {alone.padded_ms / warm_ms:.0f} |",
        "",
        f"Memory of the server and its stubs (resident, shared pages counted for each): {before.resident_mib:.0f} MiB "
        f"before the load, {after.resident_mib:.0f} MiB after. /dev/shm: {before.shm_mib:.0f} MiB before, "
        f"{after.shm_mib:.0f} MiB after.",
    ]
    return "\n".join(lines)


def _tables(
    client: CanopyClient,
    url: str,
    program: str | None,
    query: str,
    queries: list[str],
    cold: list[workload.Item],
    warm: list[workload.Item],
    *,
    quick: bool,
) -> dict[str, list[load.Figures]]:
    """One list of figures a call, by concurrency."""
    scale = 1 if quick else 3
    # None of these comes twice, in no measurement, so that the server's response cache answers none of them.
    new = {one: [f"{text} ({one}.{number})" for number in range(200) for text in queries] for one in CONCURRENCIES}
    unseen = iter(f"once: {text}" for texts in new.values() for text in texts)
    calls = {
        "compress, cold": ("compress", 4 * scale, lambda: client.compress(query, cold)),
        "compress, with trees": ("compress", 200 * scale, lambda: client.compress(query, warm)),
        "embed_query, seen": ("embed_query", 200 * scale, lambda: client.embed_query(queries[:1])),
        "embed_query, new": ("embed_query", 100 * scale, lambda: client.embed_query([next(unseen)])),
    }
    figures: dict[str, list[load.Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        workload.write_compress_input(Path(folder, "cold.json"), query, cold)
        workload.write_compress_input(Path(folder, "warm.json"), query, warm)
        workload.write_query_input(Path(folder, "seen.json"), queries)
        for concurrency, texts in new.items():
            workload.write_query_input(Path(folder, f"new{concurrency}.json"), texts)
        files = dict(zip(calls, ["cold.json", "warm.json", "seen.json", "new{}.json"], strict=True))
        for name, (model, requests, call) in calls.items():
            for _ in range(3):
                call()
            if program:
                figures[name] = load.run_perf_analyzer(
                    program,
                    model=model,
                    url=url,
                    data=lambda concurrency, name=name: Path(folder, files[name].format(concurrency)),
                    concurrencies=CONCURRENCIES,
                    requests=requests,
                )
            else:
                figures[name] = [
                    load.run_closed_loop(call, concurrency=concurrency, requests=requests)
                    for concurrency in CONCURRENCIES
                ]
    return figures


def _machine() -> str:
    """Processor, cores and Python, for the page's head."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    model = found[1] if found else platform.machine()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
