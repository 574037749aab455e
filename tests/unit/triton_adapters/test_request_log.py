"""Lines of the models' log: which request, which stage, which kind of error; never a text of a request."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from canopy_backend.errors import InvalidItem, Overloaded
from canopy_backend.triton import critic, logs
from canopy_backend.triton.logs import LINES_A_SECOND, RequestLog

SECRET = "the colour of the lantern is ultramarine"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [10.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_refused_request_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    RequestLog("hierarchy", as_json=True).failed("order-7", InvalidItem(SECRET, index=3, item_id=SECRET))
    (line,) = written(capsys)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning", "stage": "hierarchy", "message": "request failed", "request_id": "order-7",
        "code": "INVALID_ARGUMENT", "error": "InvalidItem",
    }  # fmt: skip


def test_an_unexpected_error_is_told_with_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        {}[SECRET]
    except KeyError as error:
        RequestLog("planner", as_json=True).failed("", error)
    (line,) = written(capsys)
    assert (line["level"], line["request_id"], line["error"], line["code"]) == ("error", "-", "KeyError", "INTERNAL")
    assert "test_request_log.py" in line["where"][0]
    assert "ultramarine" not in json.dumps(line)


def test_text_goes_through_the_servers_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    logger = SimpleNamespace(
        log_error=lambda text: said.append(("error", text)),
        log_warn=lambda text: said.append(("warning", text)),
        log_info=lambda text: said.append(("info", text)),
    )
    monkeypatch.setattr(logs, "pb_utils", lambda: SimpleNamespace(Logger=logger))
    log = RequestLog("refinement", answered=True)
    log.failed("order-7", Overloaded(SECRET))
    log.answered("order-8", 0.0123)
    assert said == [
        ("warning", "refinement: request failed request_id=order-7 code=RESOURCE_EXHAUSTED error=Overloaded"),
        ("info", "refinement: request answered request_id=order-8 seconds=0.0123"),
    ]


@pytest.mark.parametrize("name", ["a b", "a\nb", SECRET, "x" * 65, "é", '"'])
def test_an_id_of_another_form_is_not_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    RequestLog("hierarchy", as_json=True).failed(name, Overloaded("x"))
    assert written(capsys)[0]["request_id"] == "?"


def test_answers_are_written_at_debug_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CANOPY_LOG_FORMAT", "json")
    for level, lines in (("", 0), ("info", 0), ("debug", 1)):
        monkeypatch.setenv("CANOPY_LOG_LEVEL", level)
        RequestLog.of_environment("tokenizer").answered("a", 0.1)
        assert len(written(capsys)) == lines


def test_a_flood_is_not_a_flood_of_lines(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    log = RequestLog("refinement", as_json=True)
    for _ in range(500):
        log.failed("a", Overloaded("x"))
    assert len(written(capsys)) == LINES_A_SECOND
    clock[0] += 1
    log.failed("b", Overloaded("x"))
    (line,) = written(capsys)
    assert (line["request_id"], line["left_out"]) == ("b", 500 - LINES_A_SECOND)
    clock[0] += 1
    log.failed("c", Overloaded("x"))
    assert "left_out" not in written(capsys)[0]


def test_the_critic_hands_on_a_trace_and_nothing_else() -> None:
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = json.dumps({"traceparent": header, "timeout": 3, "other": "x"})
    assert critic.trace_headers(given) == {"traceparent": header}
    assert critic.trace_headers(json.dumps({"timeout": 3})) == {}
    assert critic.trace_headers(json.dumps({"traceparent": 3})) == {}
    assert critic.trace_headers("") == {}
    assert critic.tracing_arguments("") == {}
    assert critic.tracing_arguments("http://c:4318/v1/traces")["otlp_traces_endpoint"] == "http://c:4318/v1/traces"
