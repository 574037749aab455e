"""An evidence server of the bench's own, beside whatever else runs, with the node encoding that is asked for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.manifest import NodeEncoding
from canopy_local import stack
from canopy_local.isolation import isolated
from canopy_local.locking import Report
from canopy_local.settings import StackSettings

#: What an export writes into a repository; everything else comes from the checkout.
_EXPORTED: Final = (
    *("model.onnx", "model.onnx.data", "model.plan"),
    *("manifest.json", "tokenizer.json", "reader_tokenizer.json", "qwen3vl.json"),
)


@dataclass(frozen=True)
class Server:
    """A running evidence server.

    Attributes:
        url: ``host:port`` of gRPC.
        pid: The server's process.
        version: Triton's version.
        metrics: Address of its metrics.
        repository: Its model repository.
        node_encoding: How it encodes nodes.
    """

    url: str
    pid: int
    version: str
    metrics: str
    repository: Path
    node_encoding: NodeEncoding


@contextmanager
def evidence(node_encoding: NodeEncoding, report: Report, model: Path | None = None) -> Iterator[Server]:
    """Start an evidence server on free ports; it ends with the block.

    Its repository is a copy; the checkout's own stays as it is. With the example's encoders it is kept under
    ``CANOPY_HOME/bench``, so that they are exported once; with another ``model`` it ends with the block too.
    """
    shared = StackSettings.from_environment()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "repository") if model else shared.home / "bench" / node_encoding
        refresh(shared.model_repository, folder)
        mine = msgspec.structs.replace(
            shared, model_repository=folder, node_encoding=node_encoding, model=model or shared.model
        )
        settings = isolated(mine, Path(temporary, "home"))
        with stack.running(settings, servers=["evidence"], report=report) as status:
            (server,) = status.servers
            yield served(settings, server.pid, server.version, node_encoding)


def served(settings: StackSettings, pid: int, version: str, node_encoding: NodeEncoding) -> Server:
    """The running evidence server of a stack."""
    return Server(
        url=f"{settings.host}:{settings.grpc_port}",
        pid=pid,
        version=version,
        metrics=f"http://{settings.host}:{settings.metrics_port}/metrics",
        repository=settings.model_repository,
        node_encoding=node_encoding,
    )


def refresh(source: Path, folder: Path) -> None:
    """Copy a repository's own files to ``folder``; exported files stay there, and none is taken from here."""
    if folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file() and path.name not in _EXPORTED:
                path.unlink()
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_EXPORTED, "__pycache__"))
