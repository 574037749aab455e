"""Many clients with a clip each at once, at a server whose encoder sees: what becomes of them, and of text beside them.

``python -m benchmarks.picture_flood`` makes a tiny random Qwen3-VL and starts a server of its own with it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.memory import sampled
from benchmarks.server import Server, served
from canopy_backend.errors import CanopyError
from canopy_backend.items import Frame, Item, TextItem, VideoItem, encode_item
from canopy_client import CanopyClient, RetryPolicy
from canopy_export.configs import MAX_LOOK_MS
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_local import stack
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings

_QUERY = "Which ships carried grain?"
_WORDS = TextItem(id="words", text="The old harbour ships grain. The keeper lights the north quay.")


def clip() -> Item:
    """A clip of 32 frames of noise, 192 x 192 pixels each."""
    from PIL import Image

    random = np.random.default_rng(5)
    frames = []
    for place in range(32):
        file = BytesIO()
        Image.fromarray(random.integers(0, 256, (192, 192, 3), dtype=np.uint8)).save(file, "PNG")
        frames.append(Frame(10.0 * place, file.getvalue()))
    return VideoItem(id="clip", duration_s=320, frames=frames)


@contextmanager
def seeing(folder: Path, wait_ms: int, report: Callable[[str], None]) -> Iterator[Server]:
    """A server with a tiny random Qwen3-VL, whose pictures of ``compress`` may wait for so long.

    Args:
        folder: Where everything goes.
        wait_ms: ``max_wait_ms`` of ``hierarchy``.
        report: Called with a line about each step.
    """
    shared = StackSettings.from_environment()
    made = shutil.ignore_patterns("model.onnx*", "manifest.json", "tokenizer.json", "qwen3vl.json", "__pycache__")
    repository = folder / "repository"
    shutil.copytree(shared.model_repository, repository, ignore=made)
    own = msgspec.structs.replace(shared, model_repository=repository, model=tiny_qwen3vl(folder / "model"))
    settings = isolated(own, folder / "home")
    stack.export(settings, report)
    config = repository / "hierarchy" / "configs" / "embedded.pbtxt"
    text = re.sub(r'("max_wait_ms"\s+value \{\s+string_value: )"\d+"', rf'\1"{wait_ms}"', config.read_text("utf-8"))
    config.write_text(text, encoding="utf-8")
    with stack.running(settings, servers=["evidence"], report=report) as status:
        (server,) = status.servers
        yield served(settings, server.pid, server.version, "separate")


def timed(client: CanopyClient, item: Item) -> tuple[str, float]:
    """What became of one request, and after how many seconds."""
    start = time.perf_counter()
    try:
        client.compress(_QUERY, [item])
    except CanopyError as error:
        return type(error).__name__, time.perf_counter() - start
    return "answered", time.perf_counter() - start


def flood(server: Server, clients: int) -> Iterator[str]:
    """Send as many clips at once, and texts one after another beside them.

    Args:
        server: The server.
        clients: How many clients send a clip.

    Yields:
        A line about each thing that was seen.
    """
    moving = clip()
    with CanopyClient(server.url, deadline_s=3600, retry=RetryPolicy(attempts=1)) as client:
        timed(client, moving)
        yield f"a request of {len(encode_item(moving)) / 1e6:.1f} MB alone: {timed(client, moving)[1]:.2f} s"
        yield f"a request of text alone: {timed(client, _WORDS)[1]:.2f} s"
        with sampled(server.pid, 0.05) as sampler, ThreadPoolExecutor(clients) as pool:
            flooding = [pool.submit(timed, client, moving) for _ in range(clients)]
            texts = [timed(client, _WORDS) for _ in range(5)]
            ends = [one.result() for one in flooding]
        for kind in sorted({end for end, _ in ends}):
            waits = [seconds for end, seconds in ends if end == kind]
            yield f"{len(waits)} clips {kind}, after {min(waits):.1f} to {max(waits):.1f} s"
        yield f"texts: {', '.join(f'{end} after {seconds:.2f} s' for end, seconds in texts)}"
        total = sampler.samples.total()
        yield f"resident memory of all processes: {total[0]:.0f} MiB before, {max(total):.0f} MiB at most"
        yield f"the next clip, alone: {timed(client, moving)[1]:.2f} s"


def main() -> None:
    """Start a server, flood it, and print what became of the requests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture_flood", description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--wait-ms", type=int, default=MAX_LOOK_MS)
    options = parser.parse_args()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder, seeing(Path(folder), options.wait_ms, report) as server:
        for line in flood(server, options.clients):
            print(line, flush=True)


if __name__ == "__main__":
    main()
