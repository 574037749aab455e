"""Starting, watching and stopping the servers: what an operator does, and what goes wrong at night."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from patience import PATIENCE_S, eventually
from typer.testing import CliRunner

from canopy_backend.errors import PortBusy
from canopy_local import command, procfs
from canopy_local import stack as stack_module
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings, variable_of
from canopy_local.stack import ServerStatus
from canopy_local.state import State
from canopy_local.triton_server import MODELS

pytestmark = pytest.mark.server

EVIDENCE = ("evidence",)


@pytest.fixture(scope="module")
def settings(shared_settings: StackSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """A stack of this module's own: these tests break it."""
    one = isolated(shared_settings, tmp_path_factory.mktemp("broken") / "home")
    try:
        yield one
    finally:
        stack_module.down(one)


@pytest.fixture
def up(settings: StackSettings) -> ServerStatus:
    """The evidence server, running."""
    (server,) = stack_module.up(settings, servers=EVIDENCE, tied=True).servers
    return server


def look(settings: StackSettings) -> ServerStatus:
    (server,) = stack_module.status(settings, servers=EVIDENCE).servers
    return server


def children(settings: StackSettings) -> list[int]:
    entry = State.load(settings).servers["evidence"]
    return [pid for pid in entry.processes if pid != entry.pid]


def run(settings: StackSettings, *arguments: str) -> Any:
    app = typer.Typer()
    command.register(app)
    environment = {
        variable_of(field): str(getattr(settings, field))
        for field in ("home", "model_repository", "http_port", "grpc_port", "metrics_port")
    }
    return CliRunner().invoke(app, [*arguments, "--only", "evidence"], env=environment)


def test_busy_port_is_refused_by_name(settings: StackSettings) -> None:
    stack_module.down(settings, servers=EVIDENCE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.grpc_port))
        taken.listen()
        with pytest.raises(PortBusy, match=f"port {settings.grpc_port} .*evidence grpc.*CANOPY_GRPC_PORT"):
            stack_module.up(settings, servers=EVIDENCE, tied=True)
    assert State.load(settings).servers == {}


def test_up_again_changes_nothing(settings: StackSettings, up: ServerStatus) -> None:
    (again,) = stack_module.up(settings, servers=EVIDENCE, tied=True).servers
    assert again.pid == up.pid
    assert again.up


def test_listens_on_loopback_only(up: ServerStatus) -> None:
    listening = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].rsplit(":", 1)
                listening.setdefault(int(port, 16), set()).add(address)
    for port in up.ports.values():
        # 127.0.0.1 as the kernel writes it, also inside an IPv6 address.
        assert listening[port] <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_status_as_json(settings: StackSettings, up: ServerStatus) -> None:
    shown = run(settings, "status", "--json")
    assert shown.exit_code == 0, shown.output
    payload = json.loads(shown.stdout)
    (server,) = payload["servers"]
    assert payload["up"] is True
    assert (server["pid"], server["ready"], server["canary"]["passed"]) == (up.pid, True, True)
    assert server["version"].startswith("2.")
    assert server["ports"]["grpc"] == settings.grpc_port


def test_two_commands_take_turns(settings: StackSettings, up: ServerStatus) -> None:
    lines: list[str] = []
    results: list[int] = []

    def start() -> None:
        (server,) = stack_module.up(settings, servers=EVIDENCE, report=lines.append).servers
        results.append(server.pid)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=4 * PATIENCE_S)
    assert results == [up.pid, up.pid]
    assert sum("up already" in line for line in lines) == 2


def test_killed_server_is_noticed_and_started_again(settings: StackSettings, up: ServerStatus) -> None:
    os.kill(up.pid, signal.SIGKILL)
    eventually(lambda: not look(settings).alive)
    shown = run(settings, "status")
    assert shown.exit_code == 1
    assert "down" in shown.stdout
    old = State.load(settings).servers["evidence"]
    (again,) = stack_module.up(settings, servers=EVIDENCE, tied=True).servers
    assert again.up
    assert again.pid != up.pid
    assert procfs.carriers(old.token) == []
    assert procfs.shared_memory(old.shm_prefix) == []


def test_dead_model_is_noticed_behind_green_health(settings: StackSettings, up: ServerStatus) -> None:
    for pid in children(settings):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not children(settings))
    seen = look(settings)
    assert seen.alive
    assert seen.ready, "this Triton release does not tell"
    assert not seen.canary.passed
    assert not seen.up
    (again,) = stack_module.up(settings, servers=EVIDENCE, tied=True).servers
    assert again.up
    assert again.pid != up.pid


def test_down_leaves_nothing(settings: StackSettings, up: ServerStatus) -> None:
    entry = State.load(settings).servers["evidence"]
    assert procfs.shared_memory(entry.shm_prefix)
    shown = run(settings, "down", "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["up"] is False
    assert entry.processes == []
    assert procfs.shared_memory(entry.shm_prefix) == []
    assert State.load(settings).servers == {}
    stack_module.down(settings, servers=EVIDENCE)


def test_stale_state_does_not_kill_a_stranger(settings: StackSettings) -> None:
    """After a reboot the recorded pid may be anybody's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        state = State.load(settings)
        ticks = procfs.start_ticks(stranger.pid)
        entry = stack_module.ServerState(
            "evidence", "0" * 32, {"grpc": 1}, "canopy_evidence_00", "", stranger.pid, ticks
        )
        for stale in (entry, msgspec.structs.replace(entry, start_ticks=1)):
            state.servers["evidence"] = stale
            state.save(settings)
            stack_module.down(settings, servers=EVIDENCE)
            assert stranger.poll() is None
        stranger.communicate(b"\n", timeout=PATIENCE_S)


def test_server_of_a_killed_starter_ends(settings: StackSettings) -> None:
    """Started for a demo or a test, the server does not outlive the one who started it."""
    code = (
        "import sys, time, msgspec\n"
        "from canopy_local import stack\n"
        "from canopy_local.settings import StackSettings\n"
        "settings = msgspec.json.decode(sys.argv[1], type=StackSettings, dec_hook=lambda kind, value: kind(value))\n"
        "stack.up(settings, servers=('evidence',), tied=True)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    text = msgspec.json.encode(settings, enc_hook=str).decode()
    with subprocess.Popen([sys.executable, "-c", code, text], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        entry = State.load(settings).servers["evidence"]
        assert entry.processes
        starter.kill()
    eventually(lambda: not entry.processes)


def test_failed_start_shows_the_log_and_leaves_nothing(settings: StackSettings, tmp_path: Path) -> None:
    stack_module.down(settings, servers=EVIDENCE)
    repository = tmp_path / "repository"
    for model in MODELS["evidence"]:
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text("max_batch_size: nonsense")
    broken = msgspec.structs.replace(settings, model_repository=repository)
    state = State()
    server = stack_module.environments.ensure(broken, "server", stack_module.silent)
    entry = stack_module.processes.start(broken, state, "evidence", server=server, critic=None, tied=True)
    with pytest.raises(stack_module.StackError, match=r"(?s)ended while it started.*log ends with.*compress"):
        stack_module.processes.wait(broken, entry, stack_module.silent)
    stack_module.processes.stop(broken, state, "evidence", stack_module.silent)
    assert entry.processes == []


def test_a_server_that_hangs_while_it_starts_is_started_a_second_time(
    settings: StackSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton can wait without end for a model's process; standing still is what that looks like from outside."""
    stack_module.down(settings, servers=EVIDENCE)
    monkeypatch.setattr(stack_module.processes, "_STILL_S", 3.0)
    quick = msgspec.structs.replace(settings, stop_timeout_s=1.0)
    first: list[int] = []

    def hang() -> None:
        entry = None
        while entry is None or not entry.pid:
            entry = State.load(settings).servers.get("evidence")
        os.kill(entry.pid, signal.SIGSTOP)
        first.append(entry.pid)

    thread = threading.Thread(target=hang)
    thread.start()
    lines: list[str] = []
    (server,) = stack_module.up(quick, servers=EVIDENCE, report=lines.append, tied=True).servers
    thread.join(PATIENCE_S)
    assert server.up
    assert first != [server.pid]
    assert procfs.start_ticks(first[0]) is None
    assert sum("starting it a second time" in line for line in lines) == 1
