"""An HTTP server that speaks the OpenAI protocol as badly as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

#: What the server does with one request: its body, and where the reply goes.
Behaviour = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


class OpenAIServer:
    """Listens on a port of its own and answers each request as its behaviour says.

    Attributes:
        behaviour: What to do next.
        requests: Bodies received.
        working: Requests that were received and neither answered nor left by their client.
        most: The most of them at one time.
        connections: Open connections, each with the task that serves it.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[dict[str, Any]] = []
        self.working = 0
        self.most = 0
        self.connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                    length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
                    self.requests.append(json.loads(await reader.readexactly(length) or b"{}"))
                    await self._work(self.requests[-1], reader, writer)
        finally:
            self.connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _work(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer, or stop as soon as the client has gone, as vLLM's server does."""
        self.working += 1
        self.most = max(self.most, self.working)
        answering = asyncio.ensure_future(self.behaviour(body, writer))
        gone = asyncio.ensure_future(_gone(reader))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                await writer.drain()
        finally:
            self.working -= 1
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)
        if writer.is_closing():
            raise ConnectionError


async def _gone(reader: asyncio.StreamReader) -> None:
    """Until the client closes; its next request, on the same connection, comes only after the reply."""
    while not reader.at_eof():
        await asyncio.sleep(0.01)


def reply(content: str | None, *, status: str = "200 OK", finish: str = "stop") -> Behaviour:
    """Answer with a chat completion, whatever is asked."""
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish}
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    return raw(json.dumps({"choices": [choice], "usage": usage}).encode(), status=status)


def raw(body: bytes, *, status: str = "200 OK") -> Behaviour:
    """Answer with these bytes as the body."""

    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    return answer


def role_of(body: dict[str, Any]) -> str:
    """Who asks, by the schema that its answer is held to; the reader has none."""
    form = body.get("response_format", {}).get("json_schema", {}).get("schema", {}).get("properties", {})
    if "sufficient" in form or "Reply again" in body["messages"][-1]["content"]:
        return "critic"
    return "classifier" if "label" in form else "router" if "corpora" in form else "reader"


def by_role(**behaviours: Behaviour) -> Behaviour:
    """Answer each role in its own way."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await behaviours[role_of(body)](body, writer)

    return answer
