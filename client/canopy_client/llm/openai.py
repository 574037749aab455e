"""A language model behind an OpenAI-compatible endpoint, for a vLLM that stands elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec

from canopy_backend.addresses import MASK, shown_address, split_credentials
from canopy_backend.errors import (
    CanopyError,
    CriticError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServerUnavailable,
)
from canopy_backend.reading import UNREADABLE, told
from canopy_client import identity, telemetry
from canopy_client.deadline import Deadline
from canopy_client.llm.base import MAX_REPLY_BYTES, Completion, Message
from canopy_client.llm.places import PARALLEL, Places
from canopy_client.retry import RetryPolicy

#: What HTTP says when the request was not taken and may be sent again.
_STATUS_ERRORS: Final[dict[int, type[CanopyError]]] = {
    408: DeadlineExceeded,
    429: Overloaded,
    502: ServerUnavailable,
    503: ServerUnavailable,
    504: DeadlineExceeded,
}


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


_reply = msgspec.json.Decoder(_Reply)


class OpenAILanguageModel:
    """Client of ``POST {url}/chat/completions``.

    Args:
        url: Base address with its version, for instance ``http://localhost:8000/v1``; a user and password in it are
            sent as basic authentication where there is no ``api_key``.
        model: The model's name there.
        api_key: Sent as a bearer token; never shown.
        retry: How often a request is sent again of which nothing was received.
        parallel: Most requests in flight; further ones wait for a place.
        transport: An httpx transport to use instead of sockets.

    Raises:
        InvalidRequest: The key holds characters that no header can carry, such as the line end of its file; or user
            or password hold characters that would end the part of the address in which they stand.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str = "",
        retry: RetryPolicy | None = None,
        parallel: int = PARALLEL,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        # Kept apart from the address, which libraries log and errors name.
        bare, user, password = split_credentials(url)
        if "@" in bare:
            raise InvalidRequest(
                "the language model's address: write special characters of user and password, and an @ behind them, "
                "as %XX"
            )
        self._url = bare.rstrip("/")
        self._model = model
        self._retry = retry or RetryPolicy()
        self._places = Places(parallel)
        # The event loop alone would not keep one that nobody waits for any more.
        self._requests: set[asyncio.Task[Any]] = set()
        self._secrets = [secret for secret in (api_key, password) if secret]
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {_header_value(api_key)}"
        auth = httpx.BasicAuth(user, password) if (user or password) and not api_key else None
        self._client = httpx.AsyncClient(headers=headers, auth=auth, transport=transport, timeout=None)  # noqa: S113 - set a call

    @property
    def name(self) -> str:
        """Model and address, without credentials."""
        return f"{self._model}@{shown_address(self._url)}"

    async def close(self) -> None:
        """Close the connections; what was cancelled ends first."""
        try:
            while leaving := [one for one in self._requests if one.cancelling()]:
                await asyncio.wait(leaving)
        finally:
            await self._client.aclose()

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        deadline: Deadline,
    ) -> Completion:
        """Answer a chat; see :class:`canopy_client.llm.base.LanguageModel`."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": message.role, "content": _content(message)} for message in messages],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        if schema is not None:
            form = {"name": "reply", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        payload = msgspec.json.encode(body)

        async def attempt() -> Completion:
            return await self._attempt(payload, deadline)

        return await self._retry.run_async(attempt, deadline)

    async def _attempt(self, payload: bytes, deadline: Deadline) -> Completion:
        async with self._places.one(deadline, f"language model {self.name}"):
            try:
                with telemetry.span("chat", kind="CLIENT", canopy_request_id=identity.current()):
                    status, content = await self._answered(payload, deadline.timeout_s("language model"))
            except httpx.ConnectError as error:
                raise ServerUnavailable(f"language model {self.name}: {error}") from None
            except httpx.InvalidURL:
                # What the library says of it may be a piece of a password that nobody encoded.
                raise CriticError(f"language model {self.name}: that is no address") from None
            except httpx.HTTPError as error:
                # Part of the answer may have been received: not sent again.
                raise CriticError(f"language model {self.name}: {str(error) or type(error).__name__}") from None
        if status != httpx.codes.OK:
            kind = _STATUS_ERRORS.get(status, CriticError)
            text = content.decode("utf-8", "replace")
            for secret in self._secrets:  # some servers repeat what they refuse
                text = text.replace(secret, MASK)
            raise kind(f"language model {self.name}: HTTP {status}: {text:.300}")
        return completion_of(content, self.name)

    async def _answered(self, payload: bytes, timeout_s: float | None) -> tuple[int, bytes]:
        """Post within a time: the library's own timeouts are those of a single read, which drops never reach.

        A task of its own is cancelled once, however often this one is: a second cancellation while the first closes
        the connection, as two deadlines of one moment give, would leave it open and the server at work.
        """
        request = asyncio.ensure_future(self._post(payload))
        self._requests.add(request)
        request.add_done_callback(self._ended)
        try:
            await asyncio.wait((request,), timeout=timeout_s)
            if request.done():
                return request.result()
        finally:
            if request.cancel():
                await asyncio.wait((request,))  # so that its place becomes free with its connection
        raise DeadlineExceeded(f"language model {self.name}: no answer in {timeout_s:.1f} s")

    def _ended(self, request: asyncio.Task[Any]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            request.exception()  # looked at: whoever still waits has it from the task, nobody else misses it

    async def _post(self, payload: bytes) -> tuple[int, bytes]:
        """Status and body of the reply; a body is read no further than an answer can be long."""
        content = bytearray()
        headers = telemetry.headers()
        if name := identity.current():
            # vLLM's server takes it for the request's own name, and logs it.
            headers["X-Request-Id"] = name
        address = f"{self._url}/chat/completions"
        async with self._client.stream("POST", address, content=payload, headers=headers) as response:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_REPLY_BYTES:
                    raise CriticError(f"language model {self.name}: an answer of more than {MAX_REPLY_BYTES} bytes")
        return response.status_code, bytes(content)


def _header_value(key: str) -> str:
    """A key that a header can carry; anything else would come back in the library's own error, in clear."""
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise InvalidRequest(
            "the language model's key holds a space at an end, a line end or another character that no header can carry"
        )
    return key


def _content(message: Message) -> str | list[dict[str, Any]]:
    """A message's content: text, or its parts where it has pictures."""
    if not message.pictures:
        return message.content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{part.base64}"}}
        for part in message.parts()
    ]


def completion_of(content: bytes, name: str) -> Completion:
    """The answer in a reply's body.

    Raises:
        CriticError: The body is no chat completion, or one without an answer.
    """
    try:
        reply = _reply.decode(content)
    except UNREADABLE as error:
        raise CriticError(f"language model {name}: not a chat completion: {told(error)}") from None
    if not reply.choices:
        raise CriticError(f"language model {name}: a chat completion without choices")
    choice, usage = reply.choices[0], reply.usage or _Usage()
    return Completion(
        text=choice.message.content or choice.message.refusal or "",
        finish_reason=choice.finish_reason or "",
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )
