"""Test tools of the client: a transport that never opens a socket, a scripted language model, an in-memory store."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from canopy_backend.evidence import Decision, Evidence, Region, Trace, encode_evidence, encode_trace
from canopy_backend.items import Item, TableItem, TextItem, decode_item
from canopy_backend.limits import Limits
from canopy_client.codec import frame, unframe
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Completion, Message
from canopy_milvus import Hit

Handler = Callable[[str, Any, float | None], Any]


class Refused(Exception):
    """What a handler raises to answer with a gRPC status."""

    def __init__(self, code: str, details: str = "") -> None:
        self.code, self.details = grpc.StatusCode[code], details


class _SyncError(grpc.RpcError):
    def __init__(self, refused: Refused) -> None:
        self._refused = refused

    def code(self) -> grpc.StatusCode:
        return self._refused.code

    def details(self) -> str:
        return self._refused.details


def _aio_error(refused: Refused) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(refused.code, grpc.aio.Metadata(), grpc.aio.Metadata(), refused.details)


class FakeChannel:
    """A sync channel whose calls run a handler: ``handler(method, request, timeout)``."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        def call(request: Any, timeout: float | None = None) -> Any:
            try:
                return self.handler(method.rpartition("/")[2], request, timeout)
            except Refused as refused:
                raise _SyncError(refused) from None

        return call

    unary_stream = stream_unary = stream_stream = unary_unary

    def close(self) -> None:
        pass


class FakeAioChannel:
    """The same for ``grpc.aio``; a handler of ``ModelStreamInfer`` returns the messages, or raises among them."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        async def call(request: Any, timeout: float | None = None) -> Any:
            await asyncio.sleep(0)
            try:
                return self.handler(method.rpartition("/")[2], request, timeout)
            except Refused as refused:
                raise _aio_error(refused) from None

        return call

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return lambda requests, timeout=None: _Stream(self.handler, method.rpartition("/")[2], requests, timeout)

    unary_stream = stream_unary = unary_unary

    async def close(self) -> None:
        pass


class _Stream:
    def __init__(self, handler: Handler, method: str, requests: Any, timeout: float | None) -> None:
        self._handler, self._method, self._requests, self._timeout = handler, method, requests, timeout

    async def __aiter__(self) -> Any:
        async for request in self._requests:
            try:
                for message in self._handler(self._method, request, self._timeout):
                    yield message
            except Refused as refused:
                raise _aio_error(refused) from None

    def cancel(self) -> None:
        pass


class FakeServer:
    """An evidence server that keeps the first fragment of every item, within limits, and counts what it is asked.

    Attributes:
        limits: What it publishes and enforces.
        rows_per_item: Packed rows that each item takes, against ``max_rows``.
        failures: Statuses to answer with first, one a request.
        requests: Items or queries of each inference request.
        models: The model that each asked.
    """

    def __init__(self, limits: Limits | None = None, *, rows_per_item: int = 1) -> None:
        self.limits = limits or Limits()
        self.rows_per_item = rows_per_item
        self.failures: deque[Refused] = deque()
        self.requests: list[list[bytes]] = []
        self.models: list[str] = []
        self.parameters: list[dict[str, Any]] = []
        self.timeouts: list[float | None] = []
        self.lock = threading.Lock()

    def __call__(self, method: str, request: Any, timeout: float | None) -> Any:
        with self.lock:
            return self._answer(method, request, timeout)

    def _answer(self, method: str, request: Any, timeout: float | None) -> Any:
        if method == "ModelConfig":
            response = pb.ModelConfigResponse()
            for name, value in self.limits.to_parameters().items():
                response.config.parameters[name].string_value = value
            return response
        self.timeouts.append(timeout)
        if self.failures:
            raise self.failures.popleft()
        tensors = {one.name: raw for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)}
        name = "QUERY" if request.model_name == "embed_query" else "ITEMS"
        payloads = unframe(tensors[name])
        self.requests.append(payloads)
        self.parameters.append({key: value.WhichOneof("parameter_choice") for key, value in request.parameters.items()})
        self.models.append(request.model_name)
        return getattr(self, request.model_name.removesuffix("_indexed"))(request, payloads)

    def _check(self, payloads: list[bytes]) -> list[Item]:
        if len(payloads) > self.limits.max_items:
            raise Refused("INVALID_ARGUMENT", _over("items of the request", len(payloads), self.limits, "max_items"))
        for index, payload in enumerate(payloads):
            if b'"bad"' in payload:
                raise Refused(
                    "INVALID_ARGUMENT", f"in ensemble 'compress', hierarchy: item {index} ('bad'), field 'text': is bad"
                )
        rows = len(payloads) * self.rows_per_item
        if rows > self.limits.max_rows:
            raise Refused("INVALID_ARGUMENT", "hierarchy: " + _over("packed rows", rows, self.limits, "max_rows"))
        return [decode_item(payload) for payload in payloads]

    def compress(self, request: Any, payloads: list[bytes]) -> Any:
        evidence = [make_evidence(item) for item in self._check(payloads)]
        nodes = [Decision(0, -1, 0, 2, 0, 0.4, "split"), Decision(1, 0, 0, 1, 1, 0.5, "kept")]
        traced = "canopy_trace" in request.parameters
        traces = [encode_trace(Trace(nodes)) for _ in evidence] if traced else []
        return reply(EVIDENCE=[encode_evidence(one) for one in evidence], TRACE=traces)

    def index(self, request: Any, payloads: list[bytes]) -> Any:
        items = self._check(payloads)
        vectors = np.array([[len(item.id), 1.0] for item in items], np.float32)
        return reply(TREES=[b"tree\0" + item.id.encode() for item in items], EMBEDDINGS=vectors)

    def embed_query(self, request: Any, payloads: list[bytes]) -> Any:
        if len(payloads) > self.limits.max_queries:
            raise Refused("INVALID_ARGUMENT", _over("queries", len(payloads), self.limits, "max_queries"))
        return reply(EMBEDDING=np.array([[len(payload), 2.0] for payload in payloads], np.float32))


def _over(what: str, actual: int, limits: Limits, name: str) -> str:
    return f"{what}: {actual} is over the limit {name}={getattr(limits, name)}"


def reply(**outputs: Any) -> Any:
    """A ``ModelInferResponse``; lists are BYTES, arrays FP32 or UINT32."""
    response = pb.ModelInferResponse()
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            kind = "FP32" if value.dtype == np.float32 else "UINT32"
            response.outputs.add(name=name, datatype=kind, shape=value.shape)
            response.raw_output_contents.append(value.tobytes())
        else:
            response.outputs.add(name=name, datatype="BYTES", shape=[len(value)])
            response.raw_output_contents.append(frame(value))
    return response


def chunk(text: str, *, final: bool = True, reason: str = "stop") -> Any:
    """One message of the critic's stream."""
    response = reply(
        text_output=[text.encode()],
        finish_reason=[reason.encode()],
        num_input_tokens=np.array([7], np.uint32),
        num_output_tokens=np.array([3], np.uint32),
    )
    response.parameters["triton_final_response"].bool_param = final
    return pb.ModelStreamInferResponse(infer_response=response)


def make_evidence(item: Item, *texts: str, tokens: int = 5) -> Evidence:
    """Evidence of an item with the regions given, one fragment each and a gap between them; else one region."""
    texts = texts or (getattr(item, "text", "") or item.title or item.id,)
    regions = [Region(2 * n, 2 * n + 1, 1, 0, len(text), 0.5, text) for n, text in enumerate(texts)]
    return Evidence(
        item_id=item.id, modality=item.modality, title=item.title, text=" […] ".join(texts), regions=regions,
        unit="code_point", fragments=2 * len(texts), kept_fragments=len(texts), tokens_in=2 * tokens,
        tokens_kept=tokens, whole=False,
    )  # fmt: skip


def text_item(name: str, text: str = "", title: str = "") -> TextItem:
    return TextItem(id=name, text=text or f"Words of {name}.", title=title)


def table_item(name: str) -> TableItem:
    return TableItem(id=name, columns=["a"], rows=[["1"], ["2"]])


class ScriptedModel:
    """A language model that answers each role from a list, the last answer again and again; errors are raised."""

    name = "scripted"

    def __init__(self, **scripts: Sequence[str | Exception | float]) -> None:
        self.scripts = {role: deque(script) for role, script in scripts.items()}
        self.calls: list[tuple[str, str, Mapping[str, Any] | None]] = []

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        deadline: Deadline,
    ) -> Completion:
        role = self._role(messages)
        self.calls.append((role, messages[-1].content, schema))
        script = self.scripts.get(role) or deque(["[1] It is so."])
        step = script.popleft() if len(script) > 1 else script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await asyncio.sleep(step)
            return Completion("late")
        return Completion(step, "stop", 7, 3)

    @staticmethod
    def _role(messages: Sequence[Message]) -> str:
        asked = {"Is the evidence enough": "critic", "You read": "classifier", "You choose": "router"}
        said = "\n".join(message.content for message in messages)
        return next((role for words, role in asked.items() if words in said), "reader")

    def said_to(self, role: str) -> list[str]:
        return [content for one, content, _ in self.calls if one == role]

    async def close(self) -> None:
        pass


class MemoryRetriever:
    """Answers each query from a table, unknown queries with nothing."""

    def __init__(self, items: Mapping[str, Sequence[Item]]) -> None:
        self.items = items
        self.asked: list[tuple[str, int, frozenset[str] | None]] = []

    async def search(
        self, query: str, k: int, *, modalities: frozenset[str] | None = None, deadline: Deadline
    ) -> list[Hit]:
        self.asked.append((query, k, modalities))
        found = self.items.get(query, ())
        return [Hit(item=item, score=1 - n / 10, modality=item.modality) for n, item in enumerate(found)]


class FakeCompressor:
    """Keeps everything, and remembers how it was asked."""

    def __init__(self, tokens: int = 5) -> None:
        self.tokens = tokens
        self.asked: list[tuple[str, list[str], bool]] = []

    async def compress(
        self,
        query: str,
        items: Sequence[Item],
        *,
        keep_tables_whole: bool = False,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> list[Evidence]:
        self.asked.append((query, [item.id for item in items], keep_tables_whole))
        return [make_evidence(item, tokens=self.tokens) for item in items]


def verdict(sufficient: str, *, missing: str = "", query: str = "", answer: str = "none") -> str:
    """A critic's answer as JSON."""
    fields = {"rationale": "r", "answer": answer, "sufficient": sufficient, "missing": missing, "query": query}
    return msgspec.json.encode(fields).decode()
