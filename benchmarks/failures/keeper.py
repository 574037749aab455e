"""A process that keeps one server alive, as a node of a cluster does: a server that has ended is started again at once,
and one whose canary fails twice is stopped and started again.

What it does is told on its standard output, a line of JSON each; it stops the server when its standard input closes.
"""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from canopy_backend.errors import StackError
from canopy_local import canary, processes, stack
from canopy_local.settings import StackSettings
from canopy_local.state import ServerState, State
from canopy_local.triton_server import Launch, ports

#: Liveness as the chart has it (``canopy probe --busy-passes``), in a quicker rhythm: the chart asks once a minute.
PERIOD_S: Final = 2.0
FAILURES: Final = 2
_PROBE_S: Final = 10.0
_LOOK_S: Final = 0.25
#: Seconds that a server may take until it is there, its second try included.
_START_S: Final = 400.0
_STOP_S: Final = 60.0


class Order(msgspec.Struct, frozen=True):
    """What to keep alive.

    Attributes:
        settings: Of a stack of its own.
        name: ``evidence`` or ``critic``.
        flags: Flags of Triton that the local stack does not give.
        failures: Canaries in a row that have to fail until it is started again.
    """

    settings: StackSettings
    name: str
    flags: list[str] = []
    failures: int = FAILURES


@dataclass
class Kept:
    """A server that a keeper looks after.

    Attributes:
        order: What it keeps.
        process: The keeper.
    """

    order: Order
    process: subprocess.Popen[bytes]
    told: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The server's gRPC endpoint."""
        settings = self.order.settings
        return f"{settings.host}:{ports(settings, self.order.name)['grpc']}"

    @property
    def state(self) -> ServerState:
        """The server's process, as recorded."""
        return State.load(self.order.settings).servers[self.order.name]

    def stubs(self) -> dict[str, int]:
        """Pid of each model's process."""
        found = {}
        for pid in self.state.processes:
            parts = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            for word in parts:
                if word.endswith("/model.py") or word.endswith("/embedded.py"):
                    found[word.split("/")[-3]] = pid
        return found

    def news(self) -> list[dict[str, Any]]:
        """What the keeper did since it was asked last; waits for nothing."""
        fresh: list[dict[str, Any]] = []
        output = self.process.stdout
        assert output is not None
        while select.select([output], [], [], 0.0)[0] and (line := output.readline()):
            fresh.append(json.loads(line))
        self.told += fresh
        return fresh

    def wait_up(self) -> None:
        """Wait until the server has passed its first canary.

        Raises:
            SystemExit: It did not come up.
        """
        until = time.monotonic() + _START_S
        output = self.process.stdout
        assert output is not None
        while not any(one["event"] == "up" for one in self.told):
            ready, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
            line = output.readline() if ready else b""
            if not line:
                raise SystemExit(f"the {self.order.name} server did not come up; see {self.order.settings.logs}")
            self.told.append(json.loads(line))

    def stop(self) -> None:
        """Stop the server as the stack does, and its keeper."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            stack.down(self.order.settings, servers=[self.order.name])
            if self.process.stdout is not None:
                self.process.stdout.close()


def keep(order: Order, *, within: Sequence[str] = ()) -> Kept:
    """Start a keeper; its server is up after :meth:`Kept.wait_up`.

    Args:
        order: What to keep.
        within: A command that runs another one in some place, as ``ip netns exec NAME`` does.
    """
    command = [*within, sys.executable, "-m", "benchmarks.failures.keeper", encode(order)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_root(), bufsize=0)
    return Kept(order, process)


def encode(order: Order) -> str:
    """An order as an argument of the command."""
    return msgspec.json.encode(order, enc_hook=str).decode()


def decode(text: str) -> Order:
    """The order of an argument."""
    return msgspec.json.decode(text, type=Order, dec_hook=lambda kind, value: kind(value))


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _say(event: str, **more: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic()} | more) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


def _closed(seconds: float) -> bool:
    """Whether standard input closes within so many seconds."""
    ready, _, _ = select.select([sys.stdin.buffer], [], [], seconds)
    return bool(ready)


def _with_flags(flags: Sequence[str], launch: Any, *arguments: Any, **options: Any) -> Launch:
    prepared: Launch = launch(*arguments, **options)
    return replace(prepared, command=[*prepared.command, *flags])


def main() -> None:
    """Keep a server alive until standard input closes."""
    order = decode(sys.argv[1])
    settings, name = order.settings, order.name
    if order.flags:
        # The stack has no setting for flags that only a cluster needs.
        processes.launch = functools.partial(_with_flags, order.flags, processes.launch)
    try:
        stack.up(settings, servers=[name], tied=True)
        _say("up")
        failures, looked = 0, time.monotonic()
        while not _closed(_LOOK_S):
            entry = State.load(settings).servers.get(name)
            alive = entry is not None and entry.alive
            if alive and time.monotonic() - looked < PERIOD_S:
                continue
            reason = "it has ended"
            if entry is not None and alive:
                seen = canary.result(name, settings.host, entry.ports, timeout_s=_PROBE_S)
                looked = time.monotonic()
                failures = 0 if seen.passed or seen.busy else failures + 1
                if failures < order.failures:
                    continue
                reason = seen.error
            _restart(settings, name, reason)
            failures, looked = 0, time.monotonic()
    finally:
        stack.down(settings, servers=[name])


def _restart(settings: StackSettings, name: str, reason: str) -> None:
    _say("restart", why=reason)
    stack.down(settings, servers=[name])
    try:
        stack.up(settings, servers=[name], tied=True)
    except StackError as error:
        # As a cluster does: tried again at the next look.
        _say("not up", why=str(error))
        time.sleep(PERIOD_S)
    else:
        _say("up again")


if __name__ == "__main__":
    main()
