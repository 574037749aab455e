"""A gRPC server that speaks the inference protocol and never finishes a call, unless a test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc.aio
from tritonclient.grpc import model_config_pb2, service_pb2_grpc
from tritonclient.grpc import service_pb2 as pb


class InferenceServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Listens on a port of its own; says who it is, and works on everything else for ever.

    Attributes:
        working: Calls that were received and not left by their client.
        received: Calls received so far.
        open: Set to let calls end, with an empty reply.
    """

    def __init__(self) -> None:
        self.working = 0
        self.received = 0
        self.open = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._server.stop(None)

    async def _work(self) -> None:
        self.working += 1
        self.received += 1
        try:
            await self.open.wait()
        finally:
            self.working -= 1

    async def ServerMetadata(self, request: Any, context: Any) -> pb.ServerMetadataResponse:  # noqa: N802
        return pb.ServerMetadataResponse(name="triton", version="2.51.0")

    async def ModelConfig(self, request: Any, context: Any) -> pb.ModelConfigResponse:  # noqa: N802
        config = model_config_pb2.ModelConfig(name=request.name, backend="python")
        config.parameters["max_items"].string_value = "2"
        return pb.ModelConfigResponse(config=config)

    async def ModelInfer(self, request: Any, context: Any) -> pb.ModelInferResponse:  # noqa: N802
        await self._work()
        return pb.ModelInferResponse()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[pb.ModelStreamInferResponse]:  # noqa: N802
        async for _ in requests:
            # A first piece, so that the client is in the middle of an answer.
            yield piece("a")
            await self._work()
            return


def piece(text: str) -> pb.ModelStreamInferResponse:
    """A part of an answer."""
    payload = text.encode()
    reply = pb.ModelInferResponse(model_name="critic")
    reply.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    reply.raw_output_contents.append(len(payload).to_bytes(4, "little") + payload)
    return pb.ModelStreamInferResponse(infer_response=reply)
