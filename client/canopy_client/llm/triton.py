"""A language model behind Triton: the tensors of the vLLM backend over ``ModelStreamInfer``."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from canopy_backend.errors import CanopyError, CriticError, DeadlineExceeded, Overloaded, Restricted, ServerUnavailable
from canopy_client import codec, identity
from canopy_client.aio import open_channel
from canopy_client.calls import recorded
from canopy_client.channels import Tls, check_target
from canopy_client.codec import CriticChunk, RequestOptions
from canopy_client.deadline import Deadline
from canopy_client.llm.base import MAX_REPLY_BYTES, Completion, Message
from canopy_client.llm.chat_template import ChatTemplate
from canopy_client.llm.places import PARALLEL, Places
from canopy_client.retry import RetryPolicy
from canopy_client.status import call_error

#: First Triton release (its server version) whose vLLM backend knows ``structured_outputs``: container 25.11.
STRUCTURED_OUTPUTS_SINCE = (2, 63)

#: Errors that say what to do by themselves and are passed on as they are.
_KEPT = (DeadlineExceeded, Overloaded, ServerUnavailable)


def schema_parameter(server_version: str, backend: str, schema: Mapping[str, Any]) -> dict[str, str]:
    """The sampling parameter that holds an answer to a schema; its value is JSON text inside JSON.

    Args:
        server_version: Triton's version as its metadata tells, for instance ``"2.51.0"``.
        backend: The critic's backend. ``vllm`` is the container's, tied to the server's release; any other is this
            project's own model over a newer vLLM, which knows the current name whatever the server's version.
        schema: JSON schema of the answer.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d{1,9}", server_version)[:2])
    value = msgspec.json.encode({"json": schema}).decode()
    current = backend != "vllm" or numbers >= STRUCTURED_OUTPUTS_SINCE
    return {"structured_outputs" if current else "guided_decoding": value}


class TritonLanguageModel:
    """Client of the ``critic`` model.

    Args:
        url: ``host:port`` of the critic server's gRPC endpoint.
        model: Name of the model there.
        template: How chats become prompts.
        tls: How to encrypt; ``None`` for plain text.
        retry: How often a request is sent again of which nothing was received.
        parallel: Most requests in flight; further ones wait for a place.
        channel: An open ``grpc.aio`` channel to use instead of a new one.
    """

    def __init__(
        self,
        url: str = "localhost:9001",
        *,
        model: str = "critic",
        template: ChatTemplate | None = None,
        tls: Tls | None = None,
        retry: RetryPolicy | None = None,
        parallel: int = PARALLEL,
        channel: Any = None,
    ) -> None:
        self._url = check_target(url)
        self._model = model
        self._template = template or ChatTemplate()
        self._tls = tls
        self._retry = retry or RetryPolicy()
        self._places = Places(parallel)
        self._owned = channel is None
        self._channel = channel
        self._open_stub: Any = None
        self._key_source: tuple[str, str] | None = None

    @classmethod
    def with_model_folder(cls, url: str, folder: Path | None, **options: Any) -> TritonLanguageModel:
        """A client whose chat template is that of the model folder; ChatML where there is no folder."""
        template = ChatTemplate.from_folder(folder) if folder is not None else ChatTemplate()
        return cls(url, template=template, **options)

    @property
    def name(self) -> str:
        """Model and address."""
        return f"{self._model}@{self._url}"

    async def close(self) -> None:
        """Close the connection."""
        channel, self._open_stub = self._channel, None
        if self._owned and channel is not None:
            self._channel = None
            await channel.close()

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        deadline: Deadline,
    ) -> Completion:
        """Answer a chat; see :class:`canopy_client.llm.base.LanguageModel`."""
        if max_tokens < 1:
            raise CriticError(f"critic: max_tokens is {max_tokens}; at least one token is needed for an answer")
        prompt = self._template.render(messages)
        pictures = [one.picture.base64.encode() for message in messages for one in message.pictures]
        try:
            sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": max_tokens}
            if schema is not None:
                sampling |= schema_parameter(*await self._server(deadline), schema)

            async def attempt() -> Completion:
                return await self._attempt(prompt, pictures, sampling, deadline)

            return await self._retry.run_async(attempt, deadline)
        except _KEPT:
            raise
        except CanopyError as error:
            raise CriticError(f"critic {self.name}: {error}") from None

    async def _attempt(
        self, prompt: str, pictures: Sequence[bytes], sampling: Mapping[str, Any], deadline: Deadline
    ) -> Completion:
        """One request. After the first message of its answer an error is final: the model has begun to work."""
        async with self._places.one(deadline, f"critic {self.name}"):
            timeout = deadline.timeout_s("critic")
            options = RequestOptions(timeout_us=deadline.timeout_us(), request_id=identity.current())
            request = codec.critic_request(self._model, prompt, sampling, options, pictures=pictures)
            # Without this, the end of an empty answer would be told by nothing but the end of the stream.
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            with recorded(request, self._url) as context:
                return _joined(await self._chunks(request, timeout, context))

    async def _chunks(self, request: Any, timeout: float | None, context: Mapping[str, Any]) -> list[CriticChunk]:
        """All messages of one answer; the call is over when this ends, however it ends."""
        chunks: list[CriticChunk] = []
        size = 0
        call = self._stub().ModelStreamInfer(_once(request), timeout=timeout, **context)
        try:
            # To the end of the stream, not to the last piece: one left early can keep Triton 24.10 from unloading.
            async for message in call:
                chunks.append(codec.critic_chunk(message))
                size += len(chunks[-1].text)
                if size > MAX_REPLY_BYTES:
                    raise CriticError(f"an answer of more than {MAX_REPLY_BYTES} bytes")
        except (grpc.aio.AioRpcError, ServerUnavailable) as error:
            mapped = error if isinstance(error, CanopyError) else call_error(error, self._url)
            if chunks and not isinstance(mapped, DeadlineExceeded):
                raise CriticError(f"the stream broke after {len(chunks)} messages: {mapped}") from None
            raise mapped from None
        finally:
            call.cancel()
        return chunks

    async def _server(self, deadline: Deadline) -> tuple[str, str]:
        """Server version and the model's backend, asked once."""
        if self._key_source is None:

            async def ask() -> tuple[str, str]:
                timeout = deadline.timeout_s("critic")
                try:
                    metadata = await self._stub().ServerMetadata(pb.ServerMetadataRequest(), timeout=timeout)
                except grpc.aio.AioRpcError as error:
                    raise call_error(error, self._url) from None
                return metadata.version, await self._backend(timeout)

            self._key_source = await self._retry.run_async(ask, deadline)
        return self._key_source

    async def _backend(self, timeout: float | None) -> str:
        try:
            config = await self._stub().ModelConfig(pb.ModelConfigRequest(name=self._model), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            mapped = call_error(error, self._url)
            if isinstance(mapped, Restricted):
                # Only servers in containers are run restricted, and their critic is the container's own.
                return "vllm"
            raise mapped from None
        return str(config.config.backend)

    def _stub(self) -> Any:
        if self._open_stub is None:
            if self._channel is None:
                self._channel = open_channel(self._url, self._tls)
            self._open_stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._open_stub


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request


def _joined(chunks: Sequence[CriticChunk]) -> Completion:
    if not any(chunk.text or chunk.finish_reason for chunk in chunks):
        raise CriticError("the model sent no text")
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        finish_reason=next((chunk.finish_reason for chunk in reversed(chunks) if chunk.finish_reason), ""),
        prompt_tokens=max(chunk.prompt_tokens for chunk in chunks),
        completion_tokens=sum(chunk.completion_tokens for chunk in chunks),
    )
