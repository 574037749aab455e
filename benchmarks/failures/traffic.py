"""Eight clients that send at a steady pace, and compare each answer with the one recorded before any fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.failures.callers import DEADLINE_S
from benchmarks.failures.calls import Calls, Outcome
from canopy_backend.errors import CanopyError, DeadlineExceeded
from canopy_client.retry import RETRIED

#: The eight clients: what each calls, and the seconds between two of its calls.
LOAD: Final = (
    ("with trees", 0.2),
    ("with trees", 0.2),
    ("with trees", 0.25),
    ("cold", 1.5),
    ("embed_query", 0.3),
    ("index", 1.5),
    ("ask", 1.5),
    ("critic", 3.0),
)
#: What a client calls instead where there is no such server.
INSTEAD: Final = "with trees"
#: Seconds beyond its deadline after which a call that has not come back is taken for lost.
_GRACE_S: Final = 5.0
_WARM_UP_CALLS: Final = 2

Answers = dict[str, list[bytes]]


def record(makers: Mapping[str, Callable[[], Any]]) -> Answers:
    """The right answer to every call of every kind, each asked for alone."""
    answers: Answers = {}
    for kind, make in makers.items():
        caller = make()
        try:
            answers[kind] = [caller.call(number) for number in range(caller.variants)]
        finally:
            caller.close()
    return answers


def judged(call: Callable[[], bytes], wanted: bytes, alike: Callable[[bytes, bytes], bool]) -> tuple[Outcome, str]:
    """What becomes of a call, and its error in words.

    Args:
        call: Makes it.
        wanted: The recorded answer.
        alike: Whether two answers that are not equal are the same but for rounding.
    """
    try:
        answer = call()
    except RETRIED as error:
        return "retryable", f"{type(error).__name__}: {error}"
    except DeadlineExceeded as error:
        return "lost", f"{type(error).__name__}: {error}"
    except CanopyError as error:
        return "wrong", f"{type(error).__name__}: {error}"
    if answer == wanted:
        return "right", ""
    return ("rounded", "") if alike(answer, wanted) else ("wrong", "another answer than the recorded one")


@dataclass
class Client:
    """One sender.

    Attributes:
        kind: What it calls.
        every_s: Seconds from one call to the next, where the answer does not take longer.
        caller: Its connection.
        offset: Number of its first call.
        begin: It sends nothing before this is set.
        flying_since: When its call in flight was sent; 0 without one.
    """

    kind: str
    every_s: float
    caller: Any
    offset: int
    begin: threading.Event
    flying_since: float = 0.0


@dataclass
class Traffic:
    """A running load.

    Attributes:
        calls: What became of its calls.
        clients: Its senders.
    """

    calls: Calls
    answers: Answers
    clients: list[Client]
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, client: Client) -> None:
        """Send until the load is stopped."""
        wanted = self.answers[client.kind]
        client.begin.wait()
        number, due = client.offset, time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            place = number % len(wanted)
            client.flying_since = sent = time.monotonic()
            outcome, detail = judged(lambda place=place: client.caller.call(place), wanted[place], client.caller.alike)
            client.flying_since = 0.0
            self.calls.add(client.kind, sent, time.monotonic(), outcome, detail)
            number, due = number + 1, max(sent + client.every_s, time.monotonic())

    def settle(self, before: float) -> list[str]:
        """Wait until no call that was sent before a moment is in flight; kinds of those that never came back."""
        until = time.monotonic() + DEADLINE_S + _GRACE_S
        while flying := [one for one in self.clients if 0.0 < one.flying_since < before]:
            if time.monotonic() > until:
                return [one.kind for one in flying]
            time.sleep(0.05)
        return []

    def begin(self, kind: str) -> None:
        """Let clients send that have waited."""
        for client in self.clients:
            if client.kind == kind:
                client.begin.set()

    def begun(self) -> set[str]:
        """Kinds of which a client sends."""
        return {client.kind for client in self.clients if client.begin.is_set()}

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        for client in self.clients:
            client.begin.set()


@contextmanager
def running(makers: Mapping[str, Callable[[], Any]], answers: Answers, *, later: str = "") -> Iterator[Traffic]:
    """The load for as long as the block runs.

    Args:
        makers: How clients are made; kinds that are missing are replaced by :data:`INSTEAD`.
        answers: What :func:`record` found.
        later: A kind of which one more client waits for :meth:`Traffic.begin`.
    """
    kinds = [(kind if kind in makers else INSTEAD, every) for kind, every in LOAD]
    clients = [_client(makers, kind, every, 3 * place) for place, (kind, every) in enumerate(kinds)]
    for client in clients:
        for number in range(_WARM_UP_CALLS):
            client.caller.call(number)
        client.begin.set()
    if later:
        clients.append(_client(makers, later, 1.0, 0))
    traffic = Traffic(Calls(sorted({client.kind for client in clients})), answers, clients)
    threads = [threading.Thread(target=traffic.run, args=(one,), name=one.kind, daemon=True) for one in clients]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        traffic.stop()
        for thread in threads:
            thread.join(DEADLINE_S + _GRACE_S)
        for client, thread in zip(clients, threads, strict=True):
            if not thread.is_alive():
                client.caller.close()


def _client(makers: Mapping[str, Callable[[], Any]], kind: str, every_s: float, offset: int) -> Client:
    return Client(kind, every_s, makers[kind](), offset, threading.Event())
