"""The server with the chart's flags: mutual TLS, and every protocol closed that serving does not need."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from canopy_backend.errors import Restricted, ServerUnavailable
from canopy_client import AsyncCanopyClient, CanopyClient, RetryPolicy, Tls, canary
from canopy_local import environments, procfs, stack, triton_server
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.spawn import spawn

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key-of-the-test"
HEADER = {"triton-grpc-protocol-canopy-admin": KEY}
#: All groups but health, metadata and inference.
CLOSED = "shared-memory,model-config,model-repository,statistics,trace,logging"
ONCE = RetryPolicy(attempts=1)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, the server's certificate, a client's, and a stranger's of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    names = {"server": "subjectAltName=DNS:localhost,IP:127.0.0.1", "client": "subjectAltName=DNS:client"}
    for authority, members in (("ca", names), ("other", {"stranger": "subjectAltName=DNS:client"})):
        made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        openssl(folder, *made, "-subj", f"/CN={authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.crt")
        for name, extension in members.items():
            request = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
            openssl(folder, *request, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            (folder / f"{name}.ext").write_text(extension)
            signed = ("x509", "-req", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial")
            openssl(
                folder, *signed, "-in", f"{name}.csr", "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext"
            )
    return folder


@pytest.fixture(scope="module")
def settings(
    shared_settings: StackSettings, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StackSettings]:
    """A server with mutual TLS and closed protocols, ready."""
    one = isolated(shared_settings, tmp_path_factory.mktemp("secured") / "home")
    server = environments.ensure(one, "server", stack.silent)
    stack.export(one, stack.silent)
    token = uuid4().hex
    launch = triton_server.launch(one, "evidence", token, server=server, critic=None)
    flags = [
        f"--grpc-restricted-protocol={CLOSED}:canopy-admin={KEY}",
        f"--http-restricted-api={CLOSED},inference:canopy-admin={KEY}",
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={certificates / 'server.crt'}",
        f"--grpc-server-key={certificates / 'server.key'}",
        f"--grpc-root-cert={certificates / 'ca.crt'}",
    ]
    log = one.logs / "secured.log"
    pid = spawn(dataclasses.replace(launch, command=launch.command + flags), log, tied=True)
    try:
        until = time.monotonic() + one.start_timeout_s
        url = f"localhost:{one.grpc_port}"
        while not canary.result("evidence", url, timeout_s=10, tls=tls(certificates, "client")).passed:
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.5)
        yield one
    finally:
        procfs.end(token, pid, timeout_s=one.stop_timeout_s)
        procfs.reap(pid)
        procfs.remove_shared_memory(triton_server.shm_prefix("evidence", token))


def tls(folder: Path, name: str = "", authority: str = "ca") -> Tls:
    own = (folder / f"{name}.key", folder / f"{name}.crt") if name else (None, None)
    return Tls(folder / f"{authority}.crt", *own)


def url(settings: StackSettings) -> str:
    return f"localhost:{settings.grpc_port}"


@pytest.fixture
def admin(settings: StackSettings, certificates: Path) -> Iterator[triton.InferenceServerClient]:
    files = {
        "root_certificates": str(certificates / "ca.crt"),
        "private_key": str(certificates / "client.key"),
        "certificate_chain": str(certificates / "client.crt"),
    }
    with triton.InferenceServerClient(url(settings), ssl=True, **files) as client:
        yield client


def test_clients_work_with_their_certificate(settings: StackSettings, certificates: Path) -> None:
    with CanopyClient(url(settings), tls=tls(certificates, "client")) as client:
        (evidence,) = client.compress(
            "When is it fired?", [{"id": "a", "modality": "text", "text": "Fire it at noon."}]
        )
        assert evidence.regions
        assert client.embed_query(["kiln"]).dtype == np.float32
        with pytest.raises(Restricted, match="canopy-admin"):
            client.limits()


async def test_the_async_client_too(settings: StackSettings, certificates: Path) -> None:
    async with AsyncCanopyClient(url(settings), tls=tls(certificates, "client")) as client:
        assert len(await client.index([{"id": "a", "modality": "text", "text": "Fire it at noon."}])) == 1


@pytest.mark.parametrize(
    ("name", "authority"), [("", "ca"), ("stranger", "ca"), ("client", "other")],
    ids=["no certificate", "a stranger's certificate", "a server that is not trusted"],
)  # fmt: skip
def test_others_are_refused(settings: StackSettings, certificates: Path, name: str, authority: str) -> None:
    with (
        CanopyClient(url(settings), tls=tls(certificates, name, authority), retry=ONCE, deadline_s=10) as client,
        pytest.raises(ServerUnavailable),
    ):
        client.embed_query(["kiln"])


def test_plain_text_is_refused(settings: StackSettings) -> None:
    with CanopyClient(url(settings), retry=ONCE, deadline_s=10) as client, pytest.raises(ServerUnavailable):
        client.embed_query(["kiln"])


def test_the_probe_takes_the_same_files(settings: StackSettings, certificates: Path) -> None:
    command = [sys.executable, "-m", "canopy_client.cli.probe", "--url", url(settings), "--tls"]
    files = ["--tls-roots", "ca.crt", "--tls-key", "client.key", "--tls-certificate", "client.crt"]
    done = subprocess.run([*command, *files], cwd=certificates, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert subprocess.run(command, cwd=certificates, capture_output=True, check=False).returncode == 1


CLOSED_CALLS = {
    "load": lambda client, headers: client.load_model("embed_query", headers=headers),
    "repository": lambda client, headers: client.get_model_repository_index(headers=headers),
    "config": lambda client, headers: client.get_model_config("hierarchy", headers=headers),
    "statistics": lambda client, headers: client.get_inference_statistics(headers=headers),
    "shared memory": lambda client, headers: client.get_system_shared_memory_status(headers=headers),
    "trace": lambda client, headers: client.get_trace_settings(headers=headers),
    "log": lambda client, headers: client.get_log_settings(headers=headers),
}


@pytest.mark.parametrize("call", CLOSED_CALLS)
def test_closed_protocols_need_the_key(admin: triton.InferenceServerClient, call: str) -> None:
    for headers in (None, {"triton-grpc-protocol-canopy-admin": "wrong"}):
        with pytest.raises(InferenceServerException, match="restricted"):
            CLOSED_CALLS[call](admin, headers)
    CLOSED_CALLS[call](admin, HEADER)


def test_open_protocols_need_none(admin: triton.InferenceServerClient) -> None:
    assert admin.is_server_ready()
    assert admin.get_model_metadata("compress").name == "compress"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v2/health/live", 200), ("/v2/health/ready", 200), ("/v2/models/hierarchy/config", 403),
     ("/v2/models/stats", 403), ("/v2/logging", 403)],
)  # fmt: skip
def test_http_tells_health_alone(settings: StackSettings, path: str, status: int) -> None:
    assert httpx.get(f"http://127.0.0.1:{settings.http_port}{path}", timeout=10, trust_env=False).status_code == status


def test_http_does_not_infer(settings: StackSettings) -> None:
    body = {"inputs": [{"name": "QUERY", "datatype": "BYTES", "shape": [1], "data": ["kiln"]}]}
    address = f"http://127.0.0.1:{settings.http_port}/v2/models/embed_query/infer"
    assert httpx.post(address, json=body, timeout=10, trust_env=False).status_code == 403


def test_the_key_is_not_in_the_log(settings: StackSettings) -> None:
    assert KEY not in (settings.logs / "secured.log").read_text(encoding="utf-8")
