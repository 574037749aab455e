"""The critic of the embedded profile: the tensors of Triton's vLLM backend, served from the Python backend.

Decoupled. Each request is read while the server calls ``execute``, then answered beside the others from the engine's
event loop. Differences from the vLLM backend, on purpose: a bad sampling parameter is an INVALID_ARGUMENT that names
it, ``n`` is not taken, and images are refused because the model here reads text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import numpy as np

from canopy_backend.errors import ExportError, InvalidRequest, Overloaded
from canopy_backend.reading import UNREADABLE, told
from canopy_backend.triton import tensors
from canopy_backend.triton.backend import pb_utils, prepare_process
from canopy_backend.triton.errors import to_triton
from canopy_backend.triton.logs import RequestLog, shown
from canopy_backend.triton.model import Setting
from canopy_backend.triton.sampling import parse_sampling
from canopy_backend.triton.tensors import Array
from canopy_backend.triton.vllm_engine import Engine, Piece

#: Folder of the model to serve; the repository stays the same on every machine.
MODEL_VARIABLE: Final = "CANOPY_CRITIC_MODEL"
#: Collector of spans, OTLP over HTTP; vLLM then tells of each request that brings a trace.
TRACING_VARIABLE: Final = "CANOPY_TRACING_URL"
#: Header of a request's trace, which the server hands on as a parameter.
_TRACE_HEADER: Final = "traceparent"
#: Requests that may be open at once; more are refused, since the server itself no longer queues them.
MAX_OPEN: Final = 256
_STAGE: Final = "critic"
_EXTRAS: Final = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


class Job(msgspec.Struct, frozen=True):
    """One request, read.

    Attributes:
        prompt: The finished prompt.
        stream: Send pieces as they come instead of one answer.
        prepend: Put the prompt in front of the answer.
        sampling: Values for vLLM's sampling parameters.
        structure: The shape that the answer must have.
        extras: Names of the additional outputs that were asked for.
    """

    prompt: str
    stream: bool
    prepend: bool
    sampling: dict[str, Any]
    structure: dict[str, Any] | None
    extras: frozenset[str]


class CriticModel:
    """``critic`` over vLLM; parameter ``engine`` names the file with engine arguments beside this version's model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by the server when it loads the model."""
        prepare_process()
        setting = Setting.from_args(args)
        self._open: set[Future[None]] = set()
        self._log = RequestLog.of_environment(_STAGE)
        arguments = engine_arguments(setting, os.environ.get(MODEL_VARIABLE, ""))
        self._engine = Engine(arguments | tracing_arguments(os.environ.get(TRACING_VARIABLE, "")))

    def execute(self, requests: list[Any]) -> None:
        """Called by the server; answers go out through each request's own sender."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                if len(self._open) >= MAX_OPEN:
                    raise Overloaded(f"{MAX_OPEN} requests are open already")
                headers = trace_headers(request.parameters())
                work = self._answer(read_job(request), sender, request.request_id(), headers)
            except Exception as error:  # one bad request must not fail those beside it
                self._fail(sender, request.request_id(), error)
                continue
            future = self._engine.submit(work)
            self._open.add(future)
            future.add_done_callback(self._open.discard)

    def finalize(self) -> None:
        """Called by the server before it unloads the model."""
        self._engine.stop()

    async def _answer(self, job: Job, sender: Any, name: str, headers: Mapping[str, str]) -> None:
        final = pb_utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL
        held: list[Piece] = []
        started = time.monotonic()
        # vLLM takes a name once; several requests of one question have the same.
        unique = f"{shown(name)}-{uuid4().hex}"
        try:
            answer = self._engine.generate(unique, job.prompt, job.sampling, job.structure, headers)
            async with aclosing(answer) as pieces:
                async for piece in pieces:
                    if sender.is_cancelled():
                        sender.send(flags=final)
                        return
                    held.append(piece)
                    last = piece.finish_reason is not None
                    if job.stream or last:
                        sender.send(tensors.response(outputs(job, held)), flags=final if last else 0)
                        held.clear()
            self._log.answered(name, time.monotonic() - started)
        except Exception as error:
            self._fail(sender, name, error)

    def _fail(self, sender: Any, name: str, error: Exception) -> None:
        self._log.failed(name, error)
        final = pb_utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL
        sender.send(tensors.failure(to_triton(error, _STAGE)), flags=final)


def tracing_arguments(url: str) -> dict[str, Any]:
    """Engine arguments that make vLLM send spans; they need its statistics."""
    return {"otlp_traces_endpoint": url, "disable_log_stats": False} if url else {}


def trace_headers(parameters: str) -> dict[str, str]:
    """The trace of a request out of its parameters, one JSON object; none where it brings none."""
    if _TRACE_HEADER not in parameters:
        return {}
    value = msgspec.json.decode(parameters, type=dict[str, Any]).get(_TRACE_HEADER)
    return {_TRACE_HEADER: value} if isinstance(value, str) else {}


def engine_arguments(setting: Setting, model: str) -> dict[str, Any]:
    """Engine arguments of the model's file, with the model's folder from the environment.

    Raises:
        ExportError: The file cannot be read, or no folder of a model is named.
    """
    path = setting.folder / setting.version / setting.parameters["engine"]
    try:
        arguments: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *UNREADABLE) as error:
        raise ExportError(f"engine arguments {str(path)!r}: {told(error)}") from None
    if not (Path(model) / "config.json").is_file():
        raise ExportError(f"{MODEL_VARIABLE}={model!r} is no folder of a model; set it to one that has a config.json")
    return arguments | {"model": model}


def read_job(request: Any) -> Job:
    """Read a request's tensors.

    Raises:
        InvalidRequest: An input is missing, malformed or not served here.
    """
    if _optional(request, "image") is not None:
        raise InvalidRequest("input 'image': the model of this server reads text alone")
    prompt = tensors.text(tensors.read(request, "text_input")[0], "text_input")
    if not prompt:
        raise InvalidRequest("input 'text_input' is empty")
    stream = _flag(request, "stream", default=False)
    # As in the vLLM backend: an answer repeats the prompt unless told not to, a stream never does.
    prepend = not _flag(request, "exclude_input_in_output", default=stream)
    if stream and prepend:
        raise InvalidRequest("input 'exclude_input_in_output': a stream cannot repeat the prompt; set it to true")
    raw = _optional(request, "sampling_parameters")
    sampling, structure = parse_sampling("" if raw is None else tensors.text(raw[0], "sampling_parameters"))
    extras = frozenset(name for name in _EXTRAS if _flag(request, name, default=False))
    return Job(prompt, stream, prepend, sampling, structure, extras)


def outputs(job: Job, pieces: list[Piece]) -> dict[str, Array]:
    """Output tensors for one piece of a stream, or for all pieces of an answer; each has one element."""
    last = pieces[-1]
    text = (job.prompt if job.prepend else "") + "".join(piece.text for piece in pieces)
    found: dict[str, Array] = {"text_output": tensors.string_array([text.encode()])}
    if "return_finish_reason" in job.extras:
        found["finish_reason"] = tensors.string_array([str(last.finish_reason).encode()])
    if "return_cumulative_logprob" in job.extras:
        found["cumulative_logprob"] = np.array([last.cumulative_logprob], np.float32)
    if "return_logprobs" in job.extras:
        parts = [piece.logprobs for piece in pieces]
        joined = None if None in parts else [token for part in parts for token in part or ()]
        found["logprobs"] = tensors.string_array([msgspec.json.encode(joined)])
    if "return_num_input_tokens" in job.extras:
        found["num_input_tokens"] = np.array([last.prompt_tokens], np.uint32)
    if "return_num_output_tokens" in job.extras:
        found["num_output_tokens"] = np.array([sum(piece.tokens for piece in pieces)], np.uint32)
    return found


def _optional(request: Any, name: str) -> Array | None:
    tensor = pb_utils().get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _flag(request: Any, name: str, *, default: bool) -> bool:
    array = _optional(request, name)
    return default if array is None else bool(array.ravel()[0])
