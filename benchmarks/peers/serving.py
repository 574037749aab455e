"""Embedding servers beside Triton: infinity-emb and vLLM's pooling endpoint, each over HTTP on loopback.

Both answer the same request: texts in, vectors out. Which nodes stay would be the caller's work.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from benchmarks.peers.process import ROOT
from canopy_local.isolation import free_ports

_ENVIRONMENTS: Final = ROOT / ".canopy" / "venvs"
#: Seconds until the server has to answer.
_START_S: Final = 300.0
_SERVED_NAME: Final = "encoder"


@dataclass(frozen=True)
class Kind:
    """How a server is started.

    Attributes:
        name: What results call it.
        label: What tables call it.
        python: Interpreter of its environment.
        command: Arguments for the interpreter, from the model's folder and the port.
        path: Where it answers.
        absent: What to do to have it.
    """

    name: str
    label: str
    python: Path
    command: Callable[[Path, int], list[str]]
    path: str
    absent: str


INFINITY: Final = Kind(
    "infinity",
    "infinity-emb over HTTP",
    _ENVIRONMENTS / "infinity" / "bin" / "python",
    lambda model, port: [
        str(_ENVIRONMENTS / "infinity" / "bin" / "infinity_emb"), "v2", "--model-id", str(model),
        "--served-model-name", _SERVED_NAME, "--host", "127.0.0.1", "--port", str(port), "--engine", "torch",
        "--device", "cpu", "--no-bettertransformer", "--no-model-warmup",
    ],
    "/embeddings",
    "`make peers` creates its environment",
)  # fmt: skip
VLLM: Final = Kind(
    "vllm",
    "vLLM's pooling endpoint over HTTP",
    _ENVIRONMENTS / "critic" / "bin" / "python",
    lambda model, port: [
        "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", _SERVED_NAME,
        "--host", "127.0.0.1", "--port", str(port), "--runner", "pooling", "--dtype", "float32", "--enforce-eager",
    ],
    "/v1/embeddings",
    "`make setup demo` creates the critic's environment, which has it",
)  # fmt: skip
SERVERS: Final = (INFINITY, VLLM)


class NoServer(RuntimeError):
    """The server is not installed, or does not come up; the message says which."""


class EmbeddingServer:
    """A started server."""

    def __init__(self, kind: Kind, port: int) -> None:
        self.kind = kind
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def embed(self, texts: Sequence[str]) -> int:
        """Have texts encoded; how many vectors came back."""
        answer = self._client.post(self.kind.path, json={"model": _SERVED_NAME, "input": list(texts)})
        answer.raise_for_status()
        return len(answer.json()["data"])


@contextmanager
def serving(kind: Kind, model: Path, *, threads: int, log: Path) -> Iterator[EmbeddingServer]:
    """Start a server, wait until it encodes, and end it with the block.

    Args:
        kind: Which one.
        model: sentence-transformers folder.
        threads: Threads of its encoder.
        log: Where it writes what it has to say.

    Raises:
        NoServer: It is not installed, or does not come up.
    """
    if not kind.python.is_file():
        raise NoServer(f"not installed: {kind.absent}")
    (port,) = free_ports(1)
    program = kind.command(model, port)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(kind.python), *program], stdout=output, stderr=subprocess.STDOUT, env=_environment(threads)
        )
    server = EmbeddingServer(kind, port)
    try:
        _wait(server, process, log)
        yield server
    finally:
        server.close()
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: EmbeddingServer, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise NoServer(f"ended with exit code {process.returncode}; see {log.name}")
        try:
            server.embed(["Is it up?"])
        except httpx.HTTPError:
            time.sleep(0.5)
        else:
            return
    raise NoServer(f"did not answer in {_START_S:.0f} s; see {log.name}")


def _environment(threads: int) -> dict[str, str]:
    """Nothing is fetched, nothing is reported home, and the threads are as told."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": str(threads),
    }
