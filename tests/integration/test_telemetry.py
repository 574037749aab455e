"""One trace and one id a question, through the real servers to a real collector, and no text on the way.

The collector takes OTLP over HTTP and decodes the protocol's messages. Evidence server and critic are started with
tracing on, at rate 0: they record what brings a trace.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec
import pytest
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from patience import PATIENCE_S

from canopy_backend.errors import CanopyError
from canopy_backend.items import TextItem
from canopy_client import CanopyClient, codec, logs, request_id, telemetry
from canopy_client.answer import Answer
from canopy_client.ingestion import ingest
from canopy_client.session import open_session
from canopy_client.settings import Settings
from canopy_local import stack
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_milvus import Corpus

pytestmark = [pytest.mark.server, pytest.mark.critic]

#: A word that no log and no span may have: it stands in items, in the question and in a bad request.
WORD = "ultramarine"
ITEMS = [
    TextItem(
        id="lantern", title="Lantern", text=f"The lantern is {WORD}. It was lit in 1911. It hangs in the harbour."
    ),
    TextItem(id="bridge", title="Bridge", text=f"The bridge is iron. It spans the bay. Its lamps are {WORD} too."),
]


class Span(NamedTuple):
    """A span as the collector received it; ids in hex."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]


class Collector:
    """OTLP over HTTP on loopback; keeps what is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            # Connections stay, as with a real collector.
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(body, self.headers["Content-Type"])
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def take(self, body: bytes, kind: str) -> None:
        found = list((spans_of_json if kind == "application/json" else spans_of_protobuf)(body))
        with self.lock:
            self.bodies.append(body)
            self.spans += found

    def of(self, trace: str) -> list[Span]:
        with self.lock:
            return [span for span in self.spans if span.trace == trace]

    def questions(self) -> set[str]:
        """The traces whose root has come."""
        with self.lock:
            return {span.trace for span in self.spans if span.name == "question"}

    def wait(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        """All spans, as soon as there are enough of them."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with self.lock:
                spans = list(self.spans)
            if enough(spans):
                return spans
            time.sleep(0.1)
        raise AssertionError(f"not enough spans: {sorted((one.service, one.name) for one in spans)}")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def spans_of_protobuf(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = attributes(resource.resource)["service.name"]
        for one in (span for scope in resource.scope_spans for span in scope.spans):
            ids = (one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex())
            yield Span(service, one.name, *ids, attributes(one))


def attributes(holder: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in holder.attributes}


def spans_of_json(body: bytes) -> Iterator[Span]:
    """Triton's exporter writes OTLP as JSON, ids in hex."""

    def read(holder: dict[str, Any]) -> dict[str, Any]:
        return {one["key"]: next(iter(one["value"].values())) for one in holder.get("attributes", [])}

    for resource in json.loads(body)["resourceSpans"]:
        service = read(resource["resource"])["service.name"]
        for one in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            ids = (one["traceId"], one["spanId"], one.get("parentSpanId", ""))
            yield Span(service, one["name"], *ids, read(one))


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


@pytest.fixture(scope="module")
def settings(
    shared_settings: StackSettings, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StackSettings]:
    one = isolated(shared_settings, tmp_path_factory.mktemp("telemetry") / "home")
    one = msgspec.structs.replace(one, tracing_url=collector.url, tracing_rate=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        patch.setenv("CANOPY_LOG_FORMAT", "json")
        patch.setenv("CANOPY_LOG_LEVEL", "debug")
        with stack.running(one):
            yield one


@pytest.fixture(scope="module")
def client_settings(settings: StackSettings) -> Settings:
    found = Settings.load(
        {
            "url": f"127.0.0.1:{settings.grpc_port}",
            "critic_url": f"127.0.0.1:{settings.critic_grpc_port}",
            "home": settings.home,
            "milvus_uri": str(settings.home / "traced.db"),
            "milvus_token": "root:a-token-of-the-test",
            "max_rounds": 2,
            "critic": "llm",
            "budget_tokens": 300,
        },
        {},
    )
    with CanopyClient(found.url) as client:
        encoder = client.encoder()
        with Corpus.open(
            found.milvus(), found.corpus, revision=encoder.revision, dimension=encoder.dimension, create=True
        ) as corpus:
            ingest(client, corpus, iter(ITEMS))
    return found


_EMBED = ("question", "round", "retrieve", "embed_query", "InferRequest", "embed_query")
_COMPRESS = ("question", "round", "compress", "compress_indexed", "InferRequest", "compress_indexed")
_CRITIC = ("question", "round", "critic", "critic")
#: Names from the root to spans that a question has at least.
EXPECTED = {
    ("question", "round", "retrieve", "search"),
    (*_EMBED, "tokenizer"), (*_EMBED, "query_encoder"),
    (*_COMPRESS, "tokenizer"), (*_COMPRESS, "query_encoder"), (*_COMPRESS, "refinement"),
    (*_CRITIC, "InferRequest", "critic"), (*_CRITIC, "llm_request"),
    ("question", "reader", "critic", "InferRequest", "critic"), ("question", "reader", "critic", "llm_request"),
}  # fmt: skip


def paths(spans: list[Span]) -> set[tuple[str, ...]]:
    """Names from the root to each span."""
    by_id = {span.id: span for span in spans}

    def path(span: Span) -> tuple[str, ...]:
        above = by_id.get(span.parent)
        return (*path(above), span.name) if above else (span.name,)

    return {path(span) for span in spans}


def whole(spans: list[Span]) -> bool:
    """Whether a trace has arrived: each process sends its spans when it likes, some before those they belong to."""
    known = {span.id for span in spans}
    return paths(spans) >= EXPECTED and all(span.parent in known for span in spans if span.parent)


class Asked(NamedTuple):
    """A question, what the client logged of it, and what the collector has."""

    answer: Answer
    lines: list[dict[str, Any]]
    spans: list[Span]


@pytest.fixture(scope="module")
def asked(client_settings: Settings, collector: Collector) -> Asked:
    """A question whose trace is whole, of three at most.

    Once in a whole run the critic server's spans of one of two requests never came; why is not known. Exporters send in
    the background and promise nothing, so this asks that traces can be whole, not that each one is.
    """
    for _ in range(2):
        one = _traced(client_settings, collector)
        if whole(one.spans):
            return one
    return _traced(client_settings, collector)


def _traced(settings: Settings, collector: Collector) -> Asked:
    """One question and its trace, whole or what came of it within half a minute."""
    handler = Keeper()
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    before = collector.questions()
    try:
        with telemetry.exporting(collector.url, 1.0), request_id("order-7"):
            answer = asyncio.run(_ask(settings))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    collector.wait(lambda _: collector.questions() > before)
    (trace,) = collector.questions() - before
    until = time.monotonic() + 30
    while time.monotonic() < until and not whole(collector.of(trace)):
        time.sleep(0.1)
    return Asked(answer, handler.lines, collector.of(trace))


async def _ask(settings: Settings) -> Answer:
    async with open_session(settings) as session:
        return await session.orchestrator.answer(f"What is {WORD}?", deadline_s=120)


class Keeper(logging.Handler):
    """Keeps records as the lines of JSON that they would be."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.addFilter(logs.ContextFilter())
        self.form = logs.JsonFormatter()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.form.format(record)))


def server_lines(settings: StackSettings, name: str) -> list[dict[str, Any]]:
    """The lines of JSON in a server's log."""
    text = (settings.logs / f"{name}.log").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_a_question_is_one_trace_through_client_and_servers(asked: Asked) -> None:
    by_id = {span.id: span for span in asked.spans}
    roots = [span for span in asked.spans if not span.parent]
    assert [(one.service, one.name) for one in roots] == [("canopy-client", "question")]
    assert all(span.parent in by_id for span in asked.spans if span.parent), "every parent is in the trace"
    assert {span.service for span in asked.spans} == {
        "canopy-client",
        "canopy-evidence",
        "canopy-critic",
        "canopy-vllm",
    }


def test_stages_and_steps_nest(asked: Asked) -> None:
    assert paths(asked.spans) >= EXPECTED


def test_one_id_in_spans_logs_and_models(asked: Asked, settings: StackSettings) -> None:
    assert asked.answer.request_id == "order-7"
    servers = [span for span in asked.spans if span.service in ("canopy-evidence", "canopy-critic")]
    named = {span.attributes["triton.request_id"] for span in servers if "triton.request_id" in span.attributes}
    assert named == {"order-7"}
    ours = [line for line in asked.lines if line["logger"].startswith("canopy_client")]
    assert "question answered" in [line["message"] for line in ours]
    assert {line["request_id"] for line in ours} == {"order-7"}
    stages = {line["stage"] for line in server_lines(settings, "evidence") if line["request_id"] == "order-7"}
    assert {"tokenizer", "refinement"} <= stages
    assert any(line["request_id"] == "order-7" for line in server_lines(settings, "critic"))


def test_the_answer_names_its_request(client_settings: Settings) -> None:
    with triton.InferenceServerClient(client_settings.url) as client:
        request = codec.embed_query_request(["kiln"], codec.RequestOptions(request_id="order-8"))
        assert client._client_stub.ModelInfer(request).id == "order-8"


def test_no_text_and_no_secret_is_in_logs_and_spans(
    asked: Asked, settings: StackSettings, client_settings: Settings, collector: Collector
) -> None:
    with CanopyClient(client_settings.url) as client, pytest.raises(CanopyError), request_id("order-9"):
        client.compress(f"Is it {WORD}?", [{"id": WORD, "modality": "text", "text": WORD, "tree": "QUJD"}])
    failed = [line for line in server_lines(settings, "evidence") if line["request_id"] == "order-9" and "code" in line]
    assert [(line["code"], line["level"]) for line in failed] == [("INVALID_ARGUMENT", "warning")]
    for name in ("evidence", "critic"):
        assert WORD not in (settings.logs / f"{name}.log").read_text(encoding="utf-8")
    with collector.lock:
        assert all(WORD.encode() not in body and b"a-token-of-the-test" not in body for body in collector.bodies)
    ours = json.dumps([line for line in asked.lines if line["logger"].startswith("canopy")])
    assert WORD not in ours
    assert "a-token-of-the-test" not in json.dumps(asked.lines)


def test_what_brings_no_trace_is_recorded_at_the_servers_rate(client_settings: Settings, collector: Collector) -> None:
    def recorded() -> int:
        with collector.lock:
            return len([span for span in collector.spans if span.name == "InferRequest"])

    def recorded_of(requests: int, wanted: int) -> int:
        before = recorded()
        with CanopyClient(client_settings.url) as client:
            for _ in range(requests):
                client.embed_query(["kiln"])
        collector.wait(lambda _: recorded() - before >= wanted)
        time.sleep(1.0)  # for those that should not come
        return recorded() - before

    assert recorded_of(12, 0) == 0
    with triton.InferenceServerClient(client_settings.url) as admin:
        admin.update_trace_settings(settings={"trace_rate": "4"})
    assert recorded_of(12, 3) == 3
