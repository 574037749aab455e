"""Spans, ids and log lines of a question: what nests in what, what is said, and what never is."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from client_fakes import FakeCompressor, FakeServer, MemoryRetriever, Refused, ScriptedModel, reply, text_item, verdict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, StaticSampler

from canopy_backend.errors import CriticError, InvalidRequest, RetrievalError, ServerUnavailable
from canopy_backend.limits import Limits
from canopy_client import CanopyClient, Orchestrator, RetryPolicy, identity, logs, request_id, telemetry
from canopy_client.calls import recorded

SECRET = "the colour of the lantern is ultramarine"
FAST = RetryPolicy(first_pause_s=0.001, max_pause_s=0.002)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_provider", provider)
    yield exporter
    provider.shutdown()


class Channel:
    """A sync channel that keeps the headers and ids of inference requests."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.headers: list[dict[str, str]] = []
        self.ids: list[str] = []

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        name = method.rpartition("/")[2]

        def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
            if name == "ModelInfer":
                self.headers.append(dict(metadata))
                self.ids.append(request.id)
            return self.server(name, request, timeout)

        return call

    unary_stream = stream_unary = stream_stream = unary_unary

    def close(self) -> None:
        pass


def tree(exporter: InMemorySpanExporter) -> dict[str, str]:
    """Names of spans by the path from the root, and their parents' paths' ends."""
    found = {span.context.span_id: span for span in exporter.get_finished_spans()}
    return {span.name: found[span.parent.span_id].name if span.parent else "" for span in found.values()}


def loop(critic: list[Any] | None = None) -> Orchestrator:
    items = {"q": [text_item("A", SECRET)], "q2": [text_item("B", SECRET)]}
    more = verdict("no", missing="m", query="q2", answer=SECRET)
    return Orchestrator(
        MemoryRetriever(items), FakeCompressor(), ScriptedModel(critic=critic or [more, verdict("yes")])
    )


async def test_a_question_is_one_trace_of_rounds_and_stages(spans: InMemorySpanExporter) -> None:
    answer = await loop().answer("q")
    parents = tree(spans)
    assert parents == {
        "question": "", "round": "question", "reader": "question",
        "retrieve": "round", "compress": "round", "critic": "round",
    }  # fmt: skip
    finished = spans.get_finished_spans()
    assert len({span.context.trace_id for span in finished}) == 1
    assert [span.attributes["canopy.round"] for span in finished if span.name == "round"] == [1, 2]
    (question,) = [span for span in finished if span.name == "question"]
    assert question.attributes["canopy.request_id"] == answer.request_id
    assert question.attributes["canopy.stop"] == answer.stop
    assert question.attributes["canopy.rounds"] == 2


async def test_no_text_is_written_into_spans_even_by_errors(spans: InMemorySpanExporter) -> None:
    answer = await loop([CriticError(SECRET)]).answer("q")
    assert SECRET in answer.error
    (critic,) = [span for span in spans.get_finished_spans() if span.name == "critic"]
    assert critic.attributes["error.type"] == "CriticError"
    assert not critic.status.is_ok
    told = " ".join(span.to_json() for span in spans.get_finished_spans())
    assert "ultramarine" not in told


async def test_what_raises_ends_every_span(spans: InMemorySpanExporter) -> None:
    class Down(MemoryRetriever):
        async def search(self, *args: Any, **kwargs: Any) -> Any:
            raise RetrievalError(SECRET)

    with pytest.raises(RetrievalError):
        await Orchestrator(Down({}), FakeCompressor(), ScriptedModel()).answer("q")
    assert {span.name for span in spans.get_finished_spans()} == {"question", "round", "retrieve"}
    assert all(not span.status.is_ok for span in spans.get_finished_spans())


async def test_a_question_that_is_left_early_ends_its_spans(spans: InMemorySpanExporter) -> None:
    events = loop().events("q")
    await anext(events)
    await events.aclose()
    assert {span.name for span in spans.get_finished_spans()} == {"question", "round"}


def test_a_call_carries_its_span_to_the_server(spans: InMemorySpanExporter) -> None:
    channel = Channel(FakeServer())
    with CanopyClient(channel=channel) as client, telemetry.span("mine"):
        client.compress("q", [text_item("a")])
    (sent,) = [span for span in spans.get_finished_spans() if span.name == "compress"]
    trace, parent = f"{sent.context.trace_id:032x}", f"{sent.context.span_id:016x}"
    (headers,) = channel.headers
    version, *ids, flags = headers["traceparent"].split("-")
    assert (version, ids, int(flags, 16) & 1) == ("00", [trace, parent], 1)
    assert sent.attributes["canopy.request_id"] == channel.ids[0]
    assert tree(spans)["compress"] == "mine"


def test_parts_that_threads_send_have_one_id_and_one_trace(spans: InMemorySpanExporter) -> None:
    channel = Channel(FakeServer(Limits(max_items=1)))
    with CanopyClient(channel=channel) as client, telemetry.span("mine"):
        client.compress("q", [text_item(name) for name in "abcdef"])
    assert len(channel.ids) == 6
    assert len(set(channel.ids)) == 1
    assert len(set(channel.headers[0]) | {"traceparent"}) == 1
    sent = [span for span in spans.get_finished_spans() if span.name == "compress"]
    assert {span.parent.span_id for span in sent} == {
        next(s for s in spans.get_finished_spans() if s.name == "mine").context.span_id
    }


def test_each_attempt_is_a_span(spans: InMemorySpanExporter) -> None:
    server = FakeServer()
    server.failures.append(Refused("UNAVAILABLE"))

    class Failing(Channel):
        def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
            inner = super().unary_unary(method)

            def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
                try:
                    return inner(request, timeout, metadata)
                except Refused:
                    raise ValueError("closed") from None

            return call

    with CanopyClient(channel=Failing(server), retry=FAST) as client, pytest.raises(InvalidRequest):
        client.embed_query(["q"])
    (sent,) = [span for span in spans.get_finished_spans() if span.name == "embed_query"]
    assert sent.attributes["error.type"] == "InvalidRequest"


def test_what_is_not_sampled_sends_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_provider", TracerProvider(sampler=ALWAYS_OFF))
    with telemetry.span("mine"):
        assert telemetry.headers() == {}
        assert telemetry.metadata() == {}
        assert telemetry.trace_id() == ""


async def test_a_question_that_is_not_sampled_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    asked: list[str] = []

    class Never(StaticSampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> Any:
            asked.append(args[2])
            return super().should_sample(*args, **kwargs)

    provider = TracerProvider(sampler=Never(Decision.DROP))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_provider", provider)
    answer = await loop().answer("q")
    assert answer.stop == "sufficient"
    assert exporter.get_finished_spans() == ()
    assert asked == ["question"], "decided once, for all of its spans"


def test_without_the_package_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_api", None)
    with telemetry.span("mine", canopy_k=3) as span:
        span.set(canopy_k=4)
        span.fail(ValueError("x"))
        assert telemetry.headers() == {}
    channel = Channel(FakeServer())
    with CanopyClient(channel=channel) as client:
        client.embed_query(["q"])
    assert channel.headers == [{}]


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(InvalidRequest, match="share from 0 to 1"), telemetry.exporting("", rate):
        pass


def test_ids_follow_the_caller() -> None:
    channel = Channel(FakeServer())
    with CanopyClient(channel=channel) as client:
        with request_id("order-7"):
            client.embed_query(["q"])
            client.compress("q", [text_item("a")])
        client.embed_query(["q"])
        client.embed_query(["q"])
    assert channel.ids[:2] == ["order-7", "order-7"]
    assert len(set(channel.ids)) == 3
    assert all(len(one) == 16 for one in channel.ids[2:])
    assert identity.current() == ""


@given(st.text(max_size=80))
def test_ids_can_not_break_a_line_of_the_log(name: str) -> None:
    try:
        with request_id(name) as chosen:
            pass
    except InvalidRequest:
        return
    assert chosen.isascii()
    assert chosen.isprintable()
    assert " " not in chosen
    assert 0 < len(chosen) <= 64


async def test_the_answer_has_the_callers_id() -> None:
    with request_id("order-7"):
        answer = await loop().answer("q")
    assert answer.request_id == "order-7"
    assert identity.current() == ""


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Records of the client as a handler of ours gets them."""
    context = logs.ContextFilter()
    caplog.handler.addFilter(context)
    caplog.set_level(logging.DEBUG, logger="canopy_client")
    yield caplog
    caplog.handler.removeFilter(context)


def objects(logged: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(logs.JsonFormatter().format(record)) for record in logged.records]


async def test_log_lines_are_json_with_the_id_and_without_texts(logged: pytest.LogCaptureFixture) -> None:
    answer = await loop([CriticError(SECRET)]).answer("q")
    found = objects(logged)
    assert {line["request_id"] for line in found} == {answer.request_id}
    (warned,) = [line for line in found if line["level"] == "warning"]
    assert (warned["stop"], warned["error"], warned["round"]) == ("critic_failed", "CriticError", 1)
    assert found[-1]["message"] == "question answered"
    assert "ultramarine" not in json.dumps(found)
    assert all(line["time"].endswith("Z") for line in found)


def test_refused_calls_are_logged_by_name(logged: pytest.LogCaptureFixture) -> None:
    message = SimpleNamespace(model_name="compress", id="order-7")

    def refuse() -> None:
        with request_id("order-7"), recorded(message, "localhost:1"):
            raise ServerUnavailable(SECRET)

    with pytest.raises(ServerUnavailable):
        refuse()
    (line,) = objects(logged)
    assert (line["code"], line["error"]) == ("UNAVAILABLE", "ServerUnavailable")
    assert line["message"] == "compress of localhost:1 refused: ServerUnavailable"
    assert "ultramarine" not in json.dumps(line)


def test_an_exception_is_told_by_type_and_place() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it failed", None, sys.exc_info())
    line = json.loads(logs.JsonFormatter().format(record))
    assert line["exception"] == "KeyError"
    assert "test_client_telemetry.py" in line["where"][0]
    assert "ultramarine" not in json.dumps(line)


def test_text_lines_begin_with_the_id() -> None:
    record = logging.LogRecord("canopy", logging.INFO, __file__, 1, "it %s", ("works",), None)
    with request_id("order-7"):
        logs.ContextFilter().filter(record)
    assert logs.TextFormatter().format(record).endswith("INFO canopy: [order-7] it works")


def test_replies_are_read_as_before(spans: InMemorySpanExporter) -> None:
    """A server that sends nonsense is a failed read, not a failed call."""
    channel = Channel(lambda *_: reply())
    with CanopyClient(channel=channel) as client:
        client._limits = Limits()
        with pytest.raises(Exception, match="EMBEDDING"):
            client.embed_query(["q"])
    (sent,) = spans.get_finished_spans()
    assert sent.status.is_unset
