"""A real server starts with the very flags that the chart renders, and passes its canary."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from canopy_client import canary
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_local import environments, procfs, stack, triton_server
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.spawn import spawn

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
#: Where `make deploy-check` puts Helm.
PYTHON = ROOT / ".canopy" / "venvs" / "deploy" / "bin" / "python"
VALUES = {
    "evidence": {"profile": "embedded"},
    # Nothing listens there: a server that cannot hand over its traces serves all the same.
    "tracing": {"enabled": True, "url": "http://127.0.0.1:9/v1/traces"},
}
RENDER = """
import json, sys
import validation
manifests = validation.render(json.loads(sys.argv[1]))
pod = next(one.content for one in manifests if one.content["kind"] == "Deployment")["spec"]["template"]["spec"]
print(json.dumps(pod["containers"][0]["args"]))
"""
#: Flags of a server from the wheel, which an image does not need, and of a test, which takes loopback alone.
OURS = {"--backend-directory", "--cache-directory", "--http-address", "--grpc-address", "--metrics-address"}


def rendered(*, pixels: bool) -> list[str]:
    if not PYTHON.is_file():
        pytest.skip("Helm is not installed: make deploy-check")
    values = VALUES | {"evidence": VALUES["evidence"] | {"pixels": {"enabled": pixels}}}
    command = [str(PYTHON), "-c", RENDER, json.dumps(values)]
    done = subprocess.run(command, cwd=ROOT / "kubernetes", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("pixels", [False, True], ids=["text", "pixels"])
def test_a_server_starts_with_the_charts_flags(pixels: bool, shared_settings: StackSettings, tmp_path: Path) -> None:
    arguments = rendered(pixels=pixels)
    settings = isolated(shared_settings, tmp_path / "home")
    if pixels:  # the canary looks at a picture then
        made = shutil.ignore_patterns("model.onnx*", "manifest.json", "tokenizer.json", "qwen3vl.json")
        repository = shutil.copytree(settings.model_repository, tmp_path / "repository", ignore=made)
        settings = msgspec.structs.replace(
            settings, model_repository=repository, model=tiny_qwen3vl(tmp_path / "model")
        )
    server = environments.ensure(settings, "server", stack.silent)
    stack.export(settings, stack.silent)
    token = uuid4().hex
    launch = triton_server.launch(settings, "evidence", token, server=server, critic=None)
    local = {
        "--model-repository": settings.model_repository,
        "--http-port": settings.http_port,
        "--grpc-port": settings.grpc_port,
        "--metrics-port": settings.metrics_port,
    }
    command = [launch.command[0]]
    for argument in arguments:
        name = argument.partition("=")[0]
        command.append(f"{name}={local[name]}" if name in local else argument.replace("$(CANOPY_ADMIN_KEY)", "a-key"))
    command += [one for one in launch.command if one.partition("=")[0] in OURS or "shm-region-prefix" in one]
    log = settings.logs / "chart.log"
    pid = spawn(dataclasses.replace(launch, command=command), log, tied=True)
    try:
        until = time.monotonic() + settings.start_timeout_s
        while not (seen := canary.result("evidence", f"127.0.0.1:{settings.grpc_port}", timeout_s=10)).passed:
            assert procfs.start_ticks(pid) is not None, log.read_text(encoding="utf-8")[-3000:]
            assert time.monotonic() < until, seen.error
            time.sleep(0.5)
    finally:
        procfs.end(token, pid, timeout_s=settings.stop_timeout_s)
        procfs.reap(pid)
        procfs.remove_shared_memory(triton_server.shm_prefix("evidence", token))
