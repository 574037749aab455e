"""The worker as a process: one question in, one reply out, each with a deadline."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.peers.protocol import Asked, Hello, Job, Reply, Timed

ROOT: Final = Path(__file__).resolve().parents[2]
#: Interpreter of the environment that `make peers` makes.
PYTHON: Final = ROOT / ".canopy" / "venvs" / "peers" / "bin" / "python"
#: Longest wait for a line of the worker, in seconds: a transcript of two thousand sentences takes minutes.
DEADLINE: Final = 1800.0


class WorkerFailed(RuntimeError):
    """The worker ended, or did not answer in time."""


class Worker:
    """A started worker.

    Attributes:
        versions: Of the packages in its environment.
    """

    def __init__(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        self._process = process
        self._deadline = deadline
        hello: Hello = self._read()
        self.versions = hello["versions"]

    def ask(self, asked: Asked) -> Reply:
        """Put one question to all peers.

        Raises:
            WorkerFailed: The worker ended, or did not answer in time.
        """
        self._write(asked)
        reply: Reply = self._read()
        return reply

    def time(self, job: Job) -> Timed:
        """Have one contender of the load bench do a job.

        Raises:
            WorkerFailed: The worker ended, or did not answer in time.
        """
        self._write(job)
        timed: Timed = self._read()
        return timed

    def _write(self, line: Asked | Job) -> None:
        stream = _stream(self._process.stdin)
        try:
            stream.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            raise self._failed("ended") from None

    def _read(self) -> Any:
        stream = _stream(self._process.stdout)
        # Lines are written whole and asked for one by one, so nothing of a line is ever left in the buffer.
        ready, _, _ = select.select([stream], [], [], self._deadline)
        if not ready:
            raise self._failed(f"gave no answer in {self._deadline:.0f} s")
        line = stream.readline()
        if not line:
            raise self._failed("ended")
        return json.loads(line)

    def _failed(self, what: str) -> WorkerFailed:
        code = self._process.poll()
        return WorkerFailed(f"the peers' worker {what} (exit code {code}); what it said stands above")


@contextmanager
def worker(
    python: Path,
    model: Path,
    *,
    threads: int = 1,
    deadline: float = DEADLINE,
    module: str = "benchmarks.peers.worker",
    more: Sequence[str] = (),
) -> Iterator[Worker]:
    """Start a worker and end it.

    Args:
        python: Interpreter of the peers' environment.
        model: sentence-transformers folder.
        threads: Threads of its encoder.
        deadline: Longest wait for a line, in seconds.
        module: What runs there: the peers of the comparison, or one contender of the load bench.
        more: Further arguments.

    Raises:
        WorkerFailed: There is no such interpreter, or the worker does not come up.
    """
    if not python.is_file():
        raise WorkerFailed(f"{python}: no such file; `make peers` creates the peers' environment")
    command = [str(python), "-m", module, "--model", str(model), "--threads", str(threads), *more]
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Worker(process, deadline)
    finally:
        _end(process)


def _environment(threads: int) -> dict[str, str]:
    """Nothing is fetched, nothing is reported home, and the threads are as told."""
    dropped = ("PYTHONHOME", "PYTHONPATH", "NLTK_DATA")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    settings = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "LANGSMITH_TRACING": "false",
        "LANGCHAIN_TRACING_V2": "false",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return kept | settings


def _end(process: subprocess.Popen[bytes], patience: Sequence[float] = (5.0, 5.0)) -> None:
    """Close its input, which ends it; a worker that goes on is terminated, then killed."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    for seconds, then in zip(patience, (process.terminate, process.kill), strict=True):
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            then()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise WorkerFailed("the worker has no pipes")
    return stream
