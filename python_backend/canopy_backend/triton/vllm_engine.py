"""vLLM's engine for the critic of the embedded profile: started once, in an event loop and a thread of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, Final

import msgspec

from canopy_backend.errors import CriticError, InvalidRequest, LimitExceeded

#: Set before vLLM is imported, where the operator has not. Nothing is fetched or reported; the engine computes in one
#: process, whose threads sleep while they wait: the default, spinning, would take the cores from the evidence server.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_WAIT_POLICY": "passive",
    # The sampler of log probabilities would compile kernels for a quarter of a minute at its first use.
    "TORCHDYNAMO_DISABLE": "1",
    # Where spans are sent at all: as the server sends its own, and of requests that are traced already.
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    "OTEL_SERVICE_NAME": "canopy-vllm",
}
_STOP_TIMEOUT_S: Final = 15.0
_GUARD_GRACE_S: Final = 5.0
#: A process that ends ours when they cannot: the engine, which would wait for ever, when this process has gone (its
#: end closes the guard's input), and this process too, some seconds after the server has gone. The descriptors are
#: opened first, so that no later process of the same number can be meant.
_GUARD: Final = f"""
import contextlib, os, select, signal, sys
server, model, *engines = [os.pidfd_open(int(pid)) for pid in sys.argv[1:]]
if server in select.select([0, server], [], [])[0]:
    select.select([0], [], [], {_GUARD_GRACE_S})
    engines.append(model)
for process in engines:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
"""


class Piece(msgspec.Struct, frozen=True):
    """A part of an answer as it comes.

    Attributes:
        text: New text.
        tokens: Number of new tokens.
        finish_reason: ``stop`` or ``length`` in the last piece, else ``None``.
        logprobs: For each new token, its candidates by token id; ``None`` when not asked for.
        cumulative_logprob: Sum over the answer so far.
        prompt_tokens: Tokens of the prompt.
    """

    text: str
    tokens: int
    finish_reason: str | None
    logprobs: list[dict[int, dict[str, Any]]] | None
    cumulative_logprob: float
    prompt_tokens: int


class Engine:
    """A running vLLM engine.

    Args:
        arguments: vLLM's engine arguments, ``model`` among them.

    Raises:
        Exception: Whatever vLLM raises when it cannot start; its children are gone then.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="critic-engine", daemon=True)
        self._thread.start()
        try:
            self.submit(self._start(arguments)).result()
        except BaseException:
            self._stop_loop()
            raise

    def submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run a coroutine beside the engine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def generate(
        self,
        request_id: str,
        prompt: str,
        sampling: Mapping[str, Any],
        structure: Mapping[str, Any] | None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """Generate one answer; leaving the loop over its pieces stops it.

        Args:
            request_id: Name of the request, which no other has.
            prompt: The finished prompt.
            sampling: Values for vLLM's sampling parameters.
            structure: The shape that the answer must have.
            trace_headers: The trace that the request belongs to, as the W3C writes it.

        Raises:
            InvalidRequest: vLLM refuses a parameter.
            LimitExceeded: The prompt leaves no room for an answer.
            CriticError: The engine has died.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        token_ids = await asyncio.to_thread(self._tokenizer.encode, prompt)
        needed = len(token_ids) + 1
        if needed > self._window:
            what = "text_input: tokens, with one to answer"
            raise LimitExceeded(what, actual=needed, limit=self._window, name="max_model_len")
        parameters = self._parameters(sampling, structure)
        try:
            outputs = self._engine.generate(
                {"prompt_token_ids": token_ids}, parameters, request_id, trace_headers=trace_headers or None
            )
            async with aclosing(outputs):
                async for output in outputs:
                    yield _piece(output)
        except (VLLMClientError, ValueError) as error:
            raise InvalidRequest(f"sampling_parameters: {error}") from None
        except EngineDeadError:
            raise CriticError("the engine has stopped; restart the critic server") from None

    def stop(self) -> None:
        """Stop the engine and its processes, then the loop."""
        try:
            self.submit(self._stop()).result(timeout=_STOP_TIMEOUT_S)
        finally:
            self._stop_loop()

    async def _start(self, arguments: Mapping[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._engine: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        pids = map(str, (os.getppid(), os.getpid(), *(child.pid for child in multiprocessing.active_children())))
        command = [sys.executable, "-I", "-S", "-c", _GUARD, *pids]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603
        self._window: int = self._engine.model_config.max_model_len
        self._tokenizer: Any = self._engine.get_tokenizer()

    async def _stop(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        # The engine keeps nothing that is worth waiting for: it takes seconds to end by itself.
        self._engine.shutdown(timeout=0.2)
        self._guard.communicate(timeout=_STOP_TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_STOP_TIMEOUT_S)

    def _parameters(self, sampling: Mapping[str, Any], structure: Mapping[str, Any] | None) -> Any:
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        try:
            shape = None if structure is None else StructuredOutputsParams(**structure)
            return SamplingParams.from_optional(
                **sampling, structured_outputs=shape, output_kind=RequestOutputKind.DELTA
            )
        except (VLLMClientError, ValueError, TypeError) as error:
            raise InvalidRequest(f"sampling_parameters: {error}") from None


def _piece(output: Any) -> Piece:
    (answer,) = output.outputs
    logprobs = None
    if answer.logprobs is not None:
        logprobs = [
            {
                token: {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.decoded_token}
                for token, one in candidates.items()
            }
            for candidates in answer.logprobs
        ]
    return Piece(
        text=answer.text,
        tokens=len(answer.token_ids),
        finish_reason=answer.finish_reason,
        logprobs=logprobs,
        cumulative_logprob=answer.cumulative_logprob or 0.0,
        prompt_tokens=len(output.prompt_token_ids or ()),
    )
