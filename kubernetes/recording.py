"""Records a run of the real servers: Prometheus scrapes them while a mixed load comes and goes.

``python kubernetes/recording.py FOLDER`` starts an evidence server, with ``--critic`` the critic too, on ports of its
own, and leaves in FOLDER what ``panels.py`` draws. The load is made of the example corpus: questions with trees all the
time, cold items and indexing in the middle, bad requests now and then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from panels import NOTE, ROOT, prometheus

from canopy_backend.errors import CanopyError
from canopy_backend.items import Item
from canopy_backend.sources import read_items
from canopy_client import CanopyClient
from canopy_client.deadline import Deadline
from canopy_client.llm import TritonLanguageModel
from canopy_client.llm.base import Message
from canopy_local import stack
from canopy_local.isolation import free_ports, isolated
from canopy_local.settings import StackSettings

SCRAPE_S: Final = 2.0
_QUERIES: Final = (
    "When is the lantern race held?", "Which bridge has the longest span?", "How is a book bound?",
    "What does the tide table say of noon?", "Which lighthouse is the oldest?", "What is the pump's best point?",
)  # fmt: skip
#: An item that the server refuses.
_BAD: Final = {"id": "bad", "modality": "text", "text": "x" * 3_000_000}


class Load:
    """Threads that call a server until they are told to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, call: Callable[[int], object], pause_s: float) -> threading.Event:
        """Call again and again, from 0 up; set the returned event to end this one."""
        done = threading.Event()

        def work() -> None:
            number = 0
            while not (self._stop.is_set() or done.is_set()):
                with contextlib.suppress(CanopyError):  # refusals are part of what is recorded
                    call(number)
                number += 1
                self._stop.wait(pause_s)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)
        return done

    def end(self) -> None:
        """Stop all of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)


def drive(client: CanopyClient, items: list[Item], seconds: float, critic: str = "") -> None:
    """The load: a fifth of the time quiet, then cold items too, then quiet again."""
    indexed = [msgspec.structs.replace(one.item, tree=one.tree) for one in client.index(items)]
    cold = items[:3]
    load = Load()
    try:
        for shift in range(2):
            load.add(lambda n, s=shift: client.compress(_QUERIES[(n + s) % len(_QUERIES)], indexed[:10]), 0.05)
        load.add(lambda n: client.embed_query([f"{_QUERIES[n % len(_QUERIES)]} {n % 40}"]), 0.3)
        load.add(lambda n: client.compress("What is it?", [_BAD]), 4.0)
        if critic:
            load.add(lambda n: asyncio.run(_judge(critic, n)), 3.0)
        time.sleep(0.2 * seconds)
        busy = [load.add(lambda n: client.compress(_QUERIES[n % len(_QUERIES)], cold), 0.1) for _ in range(4)]
        busy.append(load.add(lambda n: client.index(items[n % 8 : n % 8 + 4]), 0.5))
        time.sleep(0.4 * seconds)
        for one in busy:
            one.set()
        time.sleep(0.4 * seconds)
    finally:
        load.end()


async def _judge(url: str, number: int) -> None:
    model = TritonLanguageModel(url)
    try:
        question = Message("user", f"{_QUERIES[number % len(_QUERIES)]} Answer in one sentence.")
        await model.generate([question], max_tokens=24, deadline=Deadline.after(60))
    finally:
        await model.close()


def record(folder: Path, seconds: float, *, critic: bool) -> None:
    """Record a run into ``folder``, which must not be there yet."""
    folder.mkdir(parents=True)
    items = list(read_items([ROOT / "examples" / "corpus" / "passages.jsonl"]))[:12]
    servers = ["evidence", "critic"] if critic else ["evidence"]
    with tempfile.TemporaryDirectory() as temporary:
        settings = isolated(StackSettings.from_environment(), Path(temporary, "home"))
        with stack.running(settings, servers=servers):
            targets = {f"127.0.0.1:{settings.metrics_port}": _labels("evidence")}
            if critic:
                targets[f"127.0.0.1:{settings.critic_metrics_port}"] = _labels("critic")
            (port,) = free_ports(1)
            with (
                CanopyClient(f"127.0.0.1:{settings.grpc_port}", deadline_s=60) as client,
                prometheus(folder / "series", port, targets, SCRAPE_S),
            ):
                start = time.time()
                url = f"127.0.0.1:{settings.critic_grpc_port}" if critic else ""
                drive(client, items, seconds, url)
                time.sleep(2 * SCRAPE_S)
                note = {"start": start, "end": time.time(), "scrape_s": SCRAPE_S, "servers": servers}
    (folder / NOTE).write_text(json.dumps(note), encoding="utf-8")


def _labels(component: str) -> dict[str, str]:
    """The labels that a cluster's monitor adds."""
    return {"app_kubernetes_io_component": component, "namespace": "search", "pod": f"{component}-0"}


def main() -> None:
    """Record a run."""
    parser = argparse.ArgumentParser(description="Record a run of the real servers.")
    parser.add_argument("folder", type=Path, help="where it goes; must not exist")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the load lasts")
    parser.add_argument("--critic", action="store_true", help="record the critic too")
    given = parser.parse_args()
    record(given.folder, given.seconds, critic=given.critic)


if __name__ == "__main__":
    main()
