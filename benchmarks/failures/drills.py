"""Which faults are tried, in which order, and the measurement of each."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from benchmarks.failures import faults, places
from benchmarks.failures.callers import Material, Targets, makers
from benchmarks.failures.calls import OUTCOMES, Stretch
from benchmarks.failures.faults import Fault, Stage
from benchmarks.failures.keeper import Kept, Order, keep
from benchmarks.failures.traffic import Answers, Traffic, running
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings

#: Seconds of load before a fault, and without a failure after it.
BEFORE_S: Final = 4.0
AFTER_S: Final = 6.0
#: Seconds after which a fault counts as one that was not recovered from.
_LONGEST_S: Final = 150.0
_LOOK_S: Final = 0.5
SHM_MIB: Final = 64
#: The chart's drain: connections reach their age and a tenth, the slowest request ends, ten seconds more.
CONNECTION_AGE_S: Final = 10.0
SLOWEST_S: Final = 20.0
DRAIN_S: Final = 10.0 + math.ceil(1.1 * CONNECTION_AGE_S) + SLOWEST_S


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests around one fault.

    Attributes:
        fault: What was done.
        skipped: Why it was not; empty where it was.
        sent: Requests.
        outcomes: Their number by outcome.
        recovery_s: Seconds until every kind of call was answered rightly again; ``None`` where that did not happen.
        restarts: What the keepers started again, and why.
        details: How often each error was seen.
        by_kind: Outcomes by kind of call.
    """

    fault: str
    skipped: str = ""
    sent: int = 0
    outcomes: dict[str, int] = {}
    recovery_s: float | None = None
    restarts: list[str] = []
    details: dict[str, int] = {}
    by_kind: dict[str, dict[str, int]] = {}

    @property
    def passed(self) -> bool:
        """Whether nothing was answered wrongly or lost, and all was well again."""
        if self.skipped:
            return True
        return self.outcomes["wrong"] == self.outcomes["lost"] == 0 and self.recovery_s is not None


@dataclass(frozen=True)
class Drill:
    """A fault to try on the running stack.

    Attributes:
        key: Its name on the command line.
        what: What is done, in words.
        fault: Does it.
        lasts_s: Seconds that it lasts.
    """

    key: str
    what: str
    fault: Fault
    lasts_s: float = 0.0


_STILL: Final = f"for {faults.STOPPED_S:.0f} s"
DRILLS: Final = (
    Drill("kill-stub", "kill -9 the process of `refinement`", faults.kill_stub("refinement")),
    Drill("kill-encoder", "kill -9 the process of `node_encoder`", faults.kill_stub("node_encoder")),
    Drill("kill-server", "kill -9 the evidence server", faults.kill_evidence),
    Drill("kill-critic", "kill -9 the critic server", faults.kill_critic),
    Drill("kill-llm", "kill -9 the language model's process", faults.kill_critic_model),
    Drill("stop-stub", f"`refinement` stands still {_STILL}", faults.stop_stub("refinement"), faults.STOPPED_S),
    Drill("stop-server", f"the evidence server stands still {_STILL}", faults.stop_evidence, faults.STOPPED_S),
    Drill("stop-critic", f"the critic server stands still {_STILL}", faults.stop_critic, faults.STOPPED_S),
    Drill("kill-milvus", f"kill -9 Milvus, away for {faults.AWAY_S:.0f} s", faults.kill_milvus, faults.AWAY_S),
    Drill("stop-milvus", f"Milvus stands still {_STILL}", faults.stop_milvus, faults.STOPPED_S),
)
SHM: Final = Drill("fill-shm", f"`/dev/shm` is full for {faults.FULL_S:.0f} s", faults.fill_shm, faults.FULL_S)
LINK: Final = Drill(
    "cut-link", f"the network to the server is cut for {faults.CUT_S:.0f} s", faults.cut_link, faults.CUT_S
)
ROLL: Final = Drill("roll", "two replicas are rolled, one after the other", lambda _: contextlib.nullcontext())
EVERY: Final = (*DRILLS, SHM, LINK, ROLL)


def measure(drill: Drill, stage: Stage) -> Row:
    """Do it under the running load, and see what becomes of the requests."""
    start = time.monotonic()
    kept = [one for one in (stage.evidence, stage.critic) if one is not None]
    for one in kept:
        one.news()
    time.sleep(BEFORE_S)
    with drill.fault(stage):
        began = time.monotonic()
        time.sleep(drill.lasts_s)
    _until_well(stage.traffic, start, began)
    restarts = [f"{one.order.name}: {news['why']}" for one in kept for news in one.news() if news["event"] == "restart"]
    return row(drill, stage.traffic, start, began, restarts)


def row(drill: Drill, traffic: Traffic, start: float, began: float, restarts: list[str]) -> Row:
    """The row of a drill that ends now."""
    end = time.monotonic()
    lost = traffic.settle(end)
    seen = traffic.calls.between(start, end)
    outcomes = {outcome: seen.count(outcome) for outcome in OUTCOMES}
    outcomes["lost"] += len(lost)
    return Row(
        fault=drill.what,
        sent=sum(outcomes.values()),
        outcomes=outcomes,
        recovery_s=seen.recovery_s(began),
        restarts=restarts,
        details=seen.details,
        by_kind={kind: _counts(seen, kind) for kind in seen.kinds},
    )


def _counts(seen: Stretch, kind: str) -> dict[str, int]:
    mine = seen.of(kind)
    return {outcome: mine.count(outcome) for outcome in OUTCOMES if mine.count(outcome)}


def _until_well(traffic: Traffic, start: float, began: float) -> None:
    """Wait until nothing has failed for some seconds after the recovery, or until time is up."""
    until = began + _LONGEST_S
    while (now := time.monotonic()) < until:
        seen = traffic.calls.between(start, now)
        recovered = seen.recovery_s(began)
        # Calls that hang do not fail yet, so each kind has to have been answered lately.
        answered = all(seen.of(kind).ended.max(initial=0.0) > now - AFTER_S for kind in traffic.begun())
        if answered and recovered is not None and now - began > recovered + AFTER_S:
            return
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def _kept(order: Order, within: list[str]) -> Iterator[Kept]:
    server = keep(order, within=within)
    try:
        server.wait_up()
        yield server
    finally:
        server.stop()


def full_shm(shared: StackSettings, targets: Targets, material: Material, answers: Answers, milvus: object) -> Row:
    """A server whose ``/dev/shm`` is small and then full, while requests come that need more of it."""
    settings = isolated(shared, shared.home / "full-shm")
    with _kept(Order(settings, "evidence"), places.small_shm(SHM_MIB)) as server:
        calls = makers(replace(targets, evidence=server.url, critic=""), material)
        with running(calls, answers, later="long") as traffic:
            return measure(SHM, Stage(server, None, milvus, traffic))


def cut_network(shared: StackSettings, targets: Targets, material: Material, answers: Answers, milvus: object) -> Row:
    """A server behind a link that is cut."""
    with places.link() as link:
        settings = msgspec.structs.replace(isolated(shared, shared.home / "cut-link"), host=link.address)
        with _kept(Order(settings, "evidence"), link.within()) as server:
            calls = makers(replace(targets, evidence=server.url, critic=""), material)
            with running(calls, answers) as traffic:
                return measure(LINK, Stage(server, None, milvus, traffic, link))


def roll(shared: StackSettings, targets: Targets, material: Material, answers: Answers, _: object) -> Row:
    """Two replicas are replaced, one after the other, as a cluster does it.

    The new one comes first; the old one leaves the service, its connections age, the slowest request ends, and then it
    is told to stop.
    """
    first = isolated(shared, shared.home / "replica-2")
    flags = [f"--grpc-max-connection-age={1000 * CONNECTION_AGE_S:.0f}"]

    def replica(number: int) -> Order:
        home = first.home if number == 2 else isolated(shared, shared.home / f"replica-{number}").home
        return Order(msgspec.structs.replace(first, home=home, host=f"127.0.0.{number}"), "evidence", flags)

    with contextlib.ExitStack() as open_servers:
        old = [open_servers.enter_context(_kept(replica(number), [])) for number in (2, 3)]
        addresses = [one.order.settings.host for one in old]
        places.resolve(addresses)
        url = f"dns:///{places.NAME}:{first.grpc_port}"
        calls = makers(replace(targets, evidence=url, critic=""), material)
        with running(calls, answers) as traffic:
            start = time.monotonic()
            time.sleep(BEFORE_S)
            began = time.monotonic()
            for place, server in enumerate(old):
                new = open_servers.enter_context(_kept(replica(4 + place), []))
                addresses[place] = new.order.settings.host
                places.resolve(addresses)
                time.sleep(DRAIN_S)
                server.stop()
            _until_well(traffic, start, began)
            return row(ROLL, traffic, start, began, [])


#: Drills that need a server of their own, by key.
PLACED: Final[dict[str, Callable[[StackSettings, Targets, Material, Answers, object], Row]]] = {
    SHM.key: full_shm,
    LINK.key: cut_network,
    ROLL.key: roll,
}
