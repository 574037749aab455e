"""`canopy probe` against the real server: it tells a dead model process that health does not see."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S, eventually

from canopy_local import canary, procfs
from canopy_local import stack as stack_module
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.state import State

pytestmark = pytest.mark.server

EVIDENCE = ("evidence",)
#: The models with a Python process; all of the evidence server's but the ensembles.
PYTHON_MODELS = (
    "hierarchy", "node_encoder", "planner", "query_encoder", "refinement", "tokenizer", "tree_writer"
)  # fmt: skip
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def settings(shared_settings: StackSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """A stack of this module's own: these tests break it."""
    one = isolated(shared_settings, tmp_path_factory.mktemp("probed") / "home")
    try:
        yield one
    finally:
        stack_module.down(one)


def stubs(settings: StackSettings) -> dict[str, int]:
    """Pid of each model's process: the stub names the model's file on its command line."""
    found = {}
    for pid in State.load(settings).servers["evidence"].processes:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if match := re.search(r"triton_python_backend_stub \S*/(\w+)/\d+/model\.py", words):
            found[match[1]] = pid
    return found


def probe(settings: StackSettings, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "canopy_client.cli.probe", "--url", f"127.0.0.1:{settings.grpc_port}"]
    return subprocess.run(
        [*command, "--timeout-s", str(TIMEOUT_S), *arguments],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


def test_a_working_server_passes_on_one_line(settings: StackSettings) -> None:
    stack_module.up(settings, servers=EVIDENCE, tied=True)
    done = probe(settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"evidence answers \(\d+\.\d\d s\)\n", done.stdout)
    shown = json.loads(probe(settings, "--json").stdout)
    assert shown["passed"] is True
    assert shown["servers"]["evidence"]["error"] == ""
    assert set(stubs(settings)) == set(PYTHON_MODELS)


def test_a_server_that_is_not_there_fails_beside_one_that_is(settings: StackSettings) -> None:
    stack_module.up(settings, servers=EVIDENCE, tied=True)
    done = probe(settings, "--critic", "--critic-url", "127.0.0.1:1")
    assert done.returncode == 1
    assert re.fullmatch(r"evidence answers \(.*\); critic FAILS: ServerUnavailable: .*\n", done.stdout)


def test_nothing_to_ask_is_a_wrong_command(settings: StackSettings) -> None:
    done = probe(settings, "--no-evidence")
    assert done.returncode == 2
    assert "no server to ask" in done.stderr


@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_each_dead_model_fails_the_probe_while_health_is_green(settings: StackSettings, model: str) -> None:
    stack_module.up(settings, servers=EVIDENCE, tied=True)
    pid = stubs(settings)[model]
    ticks = procfs.start_ticks(pid)
    assert probe(settings).returncode == 0
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: procfs.start_ticks(pid) != ticks)
    done = probe(settings)
    assert done.returncode == 1, f"{model} is dead: {done.stdout}"
    assert probe(settings, "--busy-passes").returncode == 1, "so that it is started again"
    assert done.stdout.startswith("evidence FAILS: ServerUnavailable: "), "clients may send again, at another replica"
    ready, _ = canary.health("127.0.0.1", settings.http_port)
    assert ready, "this Triton release does not tell"
