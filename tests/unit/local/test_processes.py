from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec
import pytest

from canopy_backend.errors import PortBusy, StackError
from canopy_local import isolation, processes, procfs
from canopy_local.locking import locked
from canopy_local.logs import tail
from canopy_local.processes import check_ports
from canopy_local.settings import StackSettings
from canopy_local.state import ServerState, State


@pytest.fixture
def settings(tmp_path: Path) -> StackSettings:
    return StackSettings(home=tmp_path)


def entry(pid: int = 0, ticks: int = 0) -> ServerState:
    return ServerState("evidence", "f" * 32, {"grpc": 8001}, "canopy_evidence_ffff_", "log", pid, ticks)


def test_start_of_a_process_is_told_apart_from_a_recycled_pid() -> None:
    ticks = procfs.start_ticks(os.getpid())
    assert ticks is not None
    assert ticks > 0
    assert entry(os.getpid(), ticks).alive
    assert not entry(os.getpid(), ticks - 1).alive
    assert not entry().alive
    assert procfs.start_ticks(2**22 + 1) is None


def test_a_process_is_found_by_its_token_alone() -> None:
    first = Path(f"/proc/{os.getpid()}/environ").read_bytes()
    assert f"{procfs.TOKEN_VARIABLE}=".encode() not in first
    assert procfs.carriers("f" * 32) == []
    assert entry(os.getpid(), procfs.start_ticks(os.getpid()) or 0).processes == []


def test_ending_a_token_that_nobody_carries_signals_nobody() -> None:
    assert procfs.end("f" * 32, os.getpid(), timeout_s=1) == []


def test_state_survives_and_bad_state_counts_as_none(settings: StackSettings) -> None:
    assert State.load(settings).servers == {}
    state = State({"evidence": entry(5, 7)})
    state.save(settings)
    assert State.load(settings).servers == state.servers
    (settings.home / "state.json").write_text("{")
    assert State.load(settings).servers == {}


def test_a_short_prefix_may_not_remove_shared_memory() -> None:
    with pytest.raises(ValueError, match="too short"):
        procfs.remove_shared_memory("canopy_")
    assert procfs.remove_shared_memory("canopy_evidence_nobody_") == []


@pytest.mark.parametrize("purpose", ["http", "grpc", "metrics"])
def test_a_busy_port_is_named(settings: StackSettings, purpose: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)
        wanted = msgspec.structs.replace(settings, **(free | {f"{purpose}_port": port}))
        with pytest.raises(PortBusy, match=f"port {port} .*CANOPY_{purpose.upper()}_PORT"):
            check_ports(wanted, "evidence")
    check_ports(wanted, "evidence")


def test_an_address_of_another_machine_is_refused(settings: StackSettings) -> None:
    with pytest.raises(StackError, match=r"192\.0\.2\.77"):
        check_ports(msgspec.structs.replace(settings, host="192.0.2.77", http_port=0), "evidence")


def test_lock_is_held_and_given_back(tmp_path: Path) -> None:
    lines: list[str] = []
    with locked(tmp_path, lines.append):
        with (tmp_path / "canopy.lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (
            pytest.raises(StackError, match=f"process {os.getpid()} holds"),
            locked(tmp_path, lines.append, timeout_s=0.1),
        ):
            pass
    assert lines == [f"waiting for another canopy command (process {os.getpid()})"]
    with locked(tmp_path, lines.append, timeout_s=0.1):
        pass


def test_tail_leaves_tables_and_routine_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("E0101 bad model\n+---+\n| a |\n+---+\nI1130 07:00:00 fine\n\nerror: creating server\n")
    assert tail(log) == "E0101 bad model\nerror: creating server"
    assert tail(log, lines=1) == "error: creating server"
    assert tail(tmp_path / "none") == ""


def test_a_start_that_does_nothing_is_told_from_one_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = [0.0], [0.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(processes.procfs, "processor_seconds", lambda _: spent[0])
    progress = processes._Progress(entry())

    def after(seconds: float, processor_s: float) -> bool:
        now[0] += seconds
        spent[0] += processor_s
        return progress.stands_still()

    assert not any(after(1.0, 0.05) for _ in range(120)), "a starved server still works"
    assert not after(20.0, -3.0), "a process that ended took its time along"
    assert not after(29.0, 0.0)
    assert after(2.0, 0.01), "a thread that looks around now and then is not work"
    assert not after(1.0, 0.3)


def test_processor_time_is_that_of_the_processes() -> None:
    before = procfs.processor_seconds([os.getpid()])
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert procfs.processor_seconds([os.getpid()]) - before >= 0.03
    assert procfs.processor_seconds([2**22 + 1]) == 0.0


def test_free_ports_are_none_that_the_kernel_could_give_to_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = map(int, isolation._GIVEN.read_text().split())
    chosen = isolation.free_ports(40)
    assert len(set(chosen)) == 40
    assert all(port >= 10_000 and not first <= port <= last for port in chosen)
    # A machine that leaves none to servers.
    monkeypatch.setattr(isolation, "_given_by_the_kernel", lambda: range(65_536))
    assert len(set(isolation.free_ports(3))) == 3
