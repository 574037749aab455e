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
_EXPORTED: Final = ("model.onnx", "model.plan", "manifest.json", "tokenizer.json", "reader_tokenizer.json")


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
            url, metrics = (f"{settings.host}:{port}" for port in (settings.grpc_port, settings.metrics_port))
            yield Server(url, server.pid, server.version, f"http://{metrics}/metrics", folder, node_encoding)


def refresh(source: Path, folder: Path) -> None:
    """Copy a repository's own files to ``folder``; exported files stay there, and none is taken from here."""
    if folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file() and path.name not in _EXPORTED:
                path.unlink()
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_EXPORTED, "__pycache__"))
