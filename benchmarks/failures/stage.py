"""The stack that is broken: evidence server, critic server and Milvus, each kept alive, with a corpus to search."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.failures import callers, faults
from benchmarks.failures.callers import Material, Targets
from benchmarks.failures.keeper import FAILURES, Kept, Order, keep
from canopy_client import CanopyClient
from canopy_local.isolation import isolated
from canopy_local.locking import Report
from canopy_local.settings import StackSettings
from canopy_milvus import Corpus

#: Few answers are cached, so that queries of the load reach the encoder each time.
_CACHE_BYTES: Final = 65_536


@dataclass(frozen=True)
class Built:
    """A running stack.

    Attributes:
        settings: A home to put further stacks into.
        evidence, critic: Its servers.
        milvus: Its store.
        targets: Where they listen.
        material: What is sent to them.
    """

    settings: StackSettings
    evidence: Kept
    critic: Kept
    milvus: Any
    targets: Targets
    material: Material


@contextmanager
def built(report: Report, *, failures: int = FAILURES) -> Iterator[Built]:
    """The stack for as long as the block runs, with what is sent to it.

    Args:
        report: Told what is done.
        failures: Canaries in a row that have to fail until a server is started again.
    """
    shared = msgspec.structs.replace(StackSettings.from_environment(), cache_bytes=_CACHE_BYTES)
    with tempfile.TemporaryDirectory(prefix="canopy-failures-") as folder, contextlib.ExitStack() as stack:
        report("starting the evidence server, the critic server and Milvus")
        # A home each: commands of one home take turns, and a restart of one server is not to wait for the other's.
        servers = [
            keep(Order(isolated(shared, Path(folder, name)), name, failures=failures))
            for name in ("evidence", "critic")
        ]
        for server in servers:
            stack.callback(server.stop)
        milvus = faults.milvus(_made(Path(folder, "milvus")))
        stack.callback(milvus.kill)
        milvus.start()
        for server in servers:
            server.wait_up()
        evidence, critic = servers
        targets = Targets(evidence.url, critic.url, milvus.uri)
        with CanopyClient(evidence.url, deadline_s=300) as client:
            report("indexing")
            material = callers.gather(client)
            encoder = client.encoder()
            options = {"revision": encoder.revision, "dimension": encoder.dimension, "modalities": ["text"]}
            with Corpus.open(milvus.uri, targets.corpus, create=True, **options) as corpus:
                corpus.upsert(client.index(material.items))
                if corpus.count() != len(material.items):
                    raise SystemExit("the store lacks items that were written")
        yield Built(evidence.order.settings, evidence, critic, milvus, targets, material)


def _made(folder: Path) -> Path:
    os.makedirs(folder)
    return folder
