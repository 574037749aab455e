"""What is said of requests around a fault: counted, compared, and the time until all is well again."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.failures import __main__ as failures
from benchmarks.failures import report
from benchmarks.failures.calls import OUTCOMES, Calls
from benchmarks.failures.drills import EVERY, PLACED, Row
from benchmarks.failures.keeper import Order, decode, encode
from benchmarks.failures.rounding import index_alike, json_alike, vectors_alike
from benchmarks.failures.soak import SHM, Latency, Soak, latency
from benchmarks.failures.traffic import Client, Traffic, judged
from canopy_backend.errors import CanopyError, DeadlineExceeded, Overloaded, ServerUnavailable
from canopy_local.settings import StackSettings

KINDS = ("ask", "cold")


def calls(*rows: tuple[str, float, float, str]) -> Calls:
    found = Calls(KINDS)
    for kind, sent, ended, outcome in rows:
        found.add(kind, sent, ended, outcome, "" if outcome == "right" else outcome)  # type: ignore[arg-type]
    return found


def raising(error: Exception):
    def call() -> bytes:
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (lambda: b"answer", "right"),
        (lambda: b"Answer", "rounded"),
        (lambda: b"another", "wrong"),
        (raising(ServerUnavailable("away")), "retryable"),
        (raising(Overloaded("full")), "retryable"),
        (raising(DeadlineExceeded("late")), "lost"),
        (raising(CanopyError("broken")), "wrong"),
    ],
)
def test_an_answer_counts_as_right_only_byte_for_byte(call, outcome: str) -> None:
    assert judged(call, b"answer", lambda one, other: one == b"Answer")[0] == outcome


def test_recovery_ends_with_the_last_kind_to_be_well() -> None:
    seen = calls(
        ("cold", 1.0, 1.5, "right"),
        ("ask", 1.0, 9.0, "retryable"),  # ends after the fault: counts, though it was sent before
        ("cold", 10.5, 11.0, "retryable"),
        ("cold", 10.8, 11.5, "right"),  # sent before the failure ended: another process may have answered
        ("cold", 12.0, 12.5, "right"),
        ("ask", 10.0, 14.0, "right"),
    ).between(0.0, 20.0)
    assert seen.recovery_s(8.0) == pytest.approx(6.0)
    assert seen.of("cold").recovery_s(8.0) == pytest.approx(4.5)


def test_a_kind_that_never_answers_again_has_no_recovery() -> None:
    assert calls(("ask", 1.0, 2.0, "right"), ("cold", 1.0, 2.0, "right")).between(0, 9).recovery_s(3.0) is None
    assert calls(("ask", 4.0, 5.0, "right"), ("ask", 6.0, 7.0, "wrong")).between(0, 9).recovery_s(3.0) is None


def test_a_stretch_is_cut_by_when_calls_were_sent() -> None:
    found = calls(("ask", 1.0, 2.0, "wrong"), ("ask", 3.0, 9.0, "right"), ("cold", 5.0, 6.0, "lost"))
    seen = found.between(2.0, 5.0)
    assert [seen.count(outcome) for outcome in OUTCOMES] == [1, 0, 0, 0, 0]
    assert seen.details == {}
    assert found.between(0.0, 9.0).details == {"wrong ask: wrong": 1, "lost cold: lost": 1}


def test_a_client_keeps_its_pace_and_compares_each_answer() -> None:
    class Caller:
        def call(self, number: int) -> bytes:
            return b"%d" % number

        def alike(self, answer: bytes, wanted: bytes) -> bool:
            return False

    client = Client("ask", 0.01, Caller(), 1, threading.Event())
    traffic = Traffic(Calls(KINDS), {"ask": [b"0", b"1", b"x"]}, [client])
    thread = threading.Thread(target=traffic.run, args=(client,))
    thread.start()
    assert len(traffic.calls) == 0
    traffic.begin("ask")
    until = time.monotonic() + 120
    while len(traffic.calls) < 6:
        assert time.monotonic() < until
        time.sleep(0.005)
    traffic.stop()
    thread.join(120)
    seen = traffic.calls.between(0.0, time.monotonic())
    assert [OUTCOMES[one] for one in seen.outcome[:6]] == ["right", "wrong", "right"] * 2
    assert (seen.sent[1:] - seen.sent[:-1]).min() >= 0.009
    assert traffic.settle(time.monotonic()) == []


def test_an_order_reaches_its_keeper_as_it_is() -> None:
    order = Order(StackSettings.from_environment({"CANOPY_HOME": "/tmp/somewhere"}), "evidence", ["--a=b"])
    assert decode(encode(order)) == order


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({one.key for one in EVERY}) == len(EVERY)
    assert set(PLACED) < {one.key for one in EVERY}


def row(**changes) -> Row:
    values = {
        "fault": "a|b",
        "sent": 3,
        "outcomes": dict(zip(OUTCOMES, (2, 0, 1, 0, 0), strict=True)),
        "recovery_s": 1.25,
    }
    return Row(**values | changes)


def test_only_wrong_lost_or_unrecovered_requests_fail_a_row() -> None:
    assert row().passed
    assert not row(recovery_s=None).passed
    for outcome in ("wrong", "lost"):
        assert not row(outcomes=dict.fromkeys(OUTCOMES, 0) | {outcome: 1}).passed
    assert Row(fault="x", skipped="needs root").passed


def test_the_page_shows_a_row_a_fault() -> None:
    rows = [
        row(details={"cold: ServerUnavailable: no | answer": 2}, by_kind={"cold": {"right": 2, "retryable": 1}}),
        row(fault="c", recovery_s=None, restarts=["evidence: gone"]),
        Row(fault="d", skipped="needs root"),
    ]
    page = report.text(report.Page("a machine", "a command", rows), "soak.png")
    assert "| a|b | 3 | 2 | 0 | 1 | 0 | 0 | 1.2 |  |" in page
    assert "| c | 3 | 2 | 0 | 1 | 0 | 0 | **never** | 1 |" in page
    assert "| d | not run: needs root |" in page
    assert "cold 2 right, 1 retryable | 2 x cold: ServerUnavailable: no \\| answer |" in page


def soaked(memory: list[float], descriptors: list[int], wrong: int = 0) -> Soak:
    outcomes = dict.fromkeys(OUTCOMES, 0) | {"right": 9, "wrong": wrong}
    one = {"cold": Latency(3, 1.0, 2.0, 3.0)}
    return Soak(
        minutes=10,
        outcomes=outcomes,
        seconds=[float(place) for place in range(len(memory))],
        memory={"model": memory, SHM: [8.0] * len(memory)},
        descriptors={"model": descriptors},
        first=one,
        last=one,
        quantiles={"cold": [[30.0, 1.0, 2.0, 3.0]]},
    )


def test_a_soak_is_judged_after_its_warm_up() -> None:
    warm = [50.0] * 4 + [100.0] * 16
    assert soaked(warm, [7] * 20).passed
    assert soaked(warm, [7] * 20).changes()["model"] == 0.0
    assert not soaked([*warm[:-2], 106.0, 106.0], [7] * 20).passed
    assert not soaked(warm, [7] * 18 + [8] * 2).passed
    assert not soaked(warm, [7] * 20, wrong=1).passed
    page = report.text(report.Page(long=soaked(warm, [7] * 20), long_command="a command"), "soak.png")
    assert "| model | 100.0 | 100.0 | +0.0 % | 7 | 7 |" in page
    assert "| cold | 3 | 1 / 2 / 3 | 3 | 1 / 2 / 3 |" in page
    assert "**hit**" in page


def test_a_shorter_soak_stands_beside_a_longer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_RESULTS", tmp_path)
    flat = soaked([100.0] * 20, [7] * 20)
    for minutes in (60.0, 40.0):
        failures.write(report.Page(long=msgspec.structs.replace(flat, minutes=minutes), long_command=f"{minutes:g}"))
    page = (tmp_path / "failures.md").read_text(encoding="utf-8")
    assert page.index("### Long: 60 minutes") < page.index("](soak.png)") < page.index("### Later, shorter: 40 minutes")
    assert "](soak-later.png)" in page
    failures.write(report.Page(long=msgspec.structs.replace(flat, minutes=90.0), long_command="90"))
    page = (tmp_path / "failures.md").read_text(encoding="utf-8")
    assert "### Long: 90 minutes" in page
    assert "Later" not in page
    assert {file.name for file in tmp_path.iterdir()} == {"failures.json", "failures.md", "soak.png"}


def test_only_the_last_digits_of_scores_may_differ() -> None:
    wanted = b'[{"text":"a","score":0.114454,"first":1}]'
    assert json_alike(wanted.replace(b"454", b"625"), wanted)
    for changed in (b"0.124454", b"1"):
        assert not json_alike(wanted.replace(b"0.114454", changed), wanted)
    assert not json_alike(wanted.replace(b'"a"', b'"b"'), wanted)
    assert not json_alike(wanted.replace(b'"first":1', b'"first":2'), wanted)
    assert not json_alike(b"[]", wanted)


def test_only_the_last_digits_of_vectors_may_differ() -> None:
    vectors = np.full((3, 8), 0.25, np.float16)

    def blob(nodes: np.ndarray, table: bytes = b"t" * 20, vector: float = 0.5) -> bytes:
        head = bytearray(60)
        struct.pack_into("<HII", head, 14, 8, 2, len(nodes))
        head[56:] = zlib.crc32(nodes.tobytes()).to_bytes(4, "little")
        return bytes(head) + table + nodes.tobytes() + np.full(8, vector, np.float32).tobytes()

    wanted = blob(vectors)
    assert index_alike(blob(vectors + np.float16(5e-4)), wanted)
    assert not index_alike(blob(vectors + np.float16(5e-3)), wanted)
    assert not index_alike(blob(vectors, table=b"u" * 20), wanted)
    assert not index_alike(blob(vectors, vector=0.6), wanted)
    assert not index_alike(wanted[:-4], wanted)
    assert vectors_alike(np.float32([1.0, 0.5]).tobytes(), np.float32([1.0, 0.5001]).tobytes())
    assert not vectors_alike(np.float32([1.0, 0.5]).tobytes(), np.float32([1.0, 0.51]).tobytes())


def test_latency_of_nothing_is_nothing() -> None:
    assert latency(Calls(KINDS).between(0, 9), 0, 9) == Latency(0, 0.0, 0.0, 0.0)
