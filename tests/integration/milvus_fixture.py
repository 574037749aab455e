"""A real Milvus 2.3.5 server from the PyPI package ``milvus``, on ports of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from canopy_local.isolation import free_ports
from milvus import MilvusServerConfig, _initialize_data_files

_START_TIMEOUT_S = 90.0


class RunningMilvus:
    """One server process over one data folder; it can be killed and started again on the same ports."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        names = ("proxy", "proxy_internal", "root_coord", "query_coord", "query_node")
        names += ("index_coord", "index_node", "data_coord", "data_node")
        *ports, client, peer, self._health = free_ports(len(names) + 3)
        by_name = {f"{name}_port": port for name, port in zip(names, ports, strict=True)}
        self.uri = f"http://127.0.0.1:{by_name['proxy_port']}"
        self._etcd = folder / "etcd.yaml"
        # The embedded etcd ignores milvus.yaml and would take 2379 and 2380: two servers could not run side by side.
        self._etcd.write_text(
            f"name: default\ndata-dir: {self._data}/data/etcd.data\n"
            f"listen-client-urls: http://127.0.0.1:{client}\nadvertise-client-urls: http://127.0.0.1:{client}\n"
            f"listen-peer-urls: http://127.0.0.1:{peer}\ninitial-advertise-peer-urls: http://127.0.0.1:{peer}\n"
            f"initial-cluster: default=http://127.0.0.1:{peer}\n"
        )
        MilvusServerConfig(data_dir=str(self._data), etcd_port=client, **by_name).resolve()
        _initialize_data_files(str(self._data))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> RunningMilvus:
        binary = self._data / "bin" / "milvus"
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._health),
            "MILVUS_RUN_DIR": str(self._data / "run"),
            "LD_LIBRARY_PATH": str(binary.parent),
            "ETCD_CONFIG_PATH": str(self._etcd),
        }
        with (self._data / "logs" / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary, "run", "standalone"], cwd=self._data, env=environment, stdout=log, stderr=log
            )
        self._wait_ready(self.process)
        return self

    def kill(self) -> None:
        """SIGKILL, as when a machine loses power."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10)
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=2)
        self.kill()

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < until and process.poll() is None:
            with (
                contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
                urllib.request.urlopen(f"http://127.0.0.1:{self._health}/healthz", timeout=5) as reply,
            ):
                if b"OK" in reply.read():
                    return
            time.sleep(0.1)
        self.kill()
        log = (self._data / "logs" / "server.log").read_text(errors="replace")
        raise RuntimeError(f"Milvus did not start:\n{log[-2000:]}")
