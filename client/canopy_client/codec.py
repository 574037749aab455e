"""Python values to protocol messages and back. No sockets: both clients, sync and async, stand on this module.

``BYTES`` tensors travel in ``raw_input_contents``: each element behind its length, a 32-bit little-endian integer.
They are framed here directly, since numpy's fixed-width strings would cut trailing NUL bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as pb

from canopy_backend.errors import CanopyError, ServerUnavailable
from canopy_backend.evidence import Evidence, Trace
from canopy_backend.items import bring_trees
from canopy_backend.limits import Limits
from canopy_backend.reading import UNREADABLE, told
from canopy_client.status import error_from_status

FloatArray = npt.NDArray[np.float32]

_LENGTH: Final = struct.Struct("<I")
_evidence = msgspec.json.Decoder(Evidence)
_trace = msgspec.json.Decoder(Trace)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request carries besides its tensors.

    Attributes:
        parameters: Request parameters by name; bool, int or str.
        timeout_us: How long the server may keep the request in a queue, in microseconds.
        request_id: Shown in the server's log.
    """

    parameters: Mapping[str, bool | int | str] = field(default_factory=dict)
    timeout_us: int | None = None
    request_id: str = ""


NO_OPTIONS: Final = RequestOptions()


# --- requests -------------------------------------------------------------------------------------------------------


def compress_request(query: str, items: Sequence[bytes], options: RequestOptions = NO_OPTIONS) -> Any:
    """The ``ModelInferRequest`` of ``compress``: ``QUERY`` STRING[1], ``ITEMS`` STRING[n] of JSON.

    Items that all bring their trees go to ``compress_indexed``, which decides alike and has fewer steps.
    """
    model = "compress_indexed" if bring_trees(items) else "compress"
    request = _request(model, options, ["EVIDENCE", "TRACE"])
    _add_strings(request, "QUERY", [query.encode()])
    _add_strings(request, "ITEMS", items)
    return request


def index_request(items: Sequence[bytes], options: RequestOptions = NO_OPTIONS) -> Any:
    """The request of ``index``: ``ITEMS`` STRING[n] of JSON."""
    request = _request("index", options, ["TREES", "EMBEDDINGS"])
    _add_strings(request, "ITEMS", items)
    return request


def embed_query_request(queries: Sequence[str], options: RequestOptions = NO_OPTIONS) -> Any:
    """The request of ``embed_query``: ``QUERY`` STRING[n]."""
    request = _request("embed_query", options, ["EMBEDDING"])
    _add_strings(request, "QUERY", [query.encode() for query in queries])
    return request


def critic_request(
    model: str,
    prompt: str,
    sampling: Mapping[str, Any],
    options: RequestOptions = NO_OPTIONS,
    *,
    pictures: Sequence[bytes] = (),
) -> Any:
    """The request of a model with the vLLM backend's tensors, one whole answer, counts and reason asked for.

    Args:
        model: The model's name.
        prompt: The finished prompt, with a placeholder for each picture.
        sampling: Sampling parameters.
        options: What the request carries besides.
        pictures: Picture files in base64, in the order of their placeholders.
    """
    request = _request(model, options, [])
    _add_strings(request, "text_input", [prompt.encode()])
    if pictures:
        _add_strings(request, "image", pictures)
    _add_strings(request, "sampling_parameters", [msgspec.json.encode(sampling)])
    for name, value in (
        ("stream", False),
        # Otherwise the backend puts the prompt in front of its answer.
        ("exclude_input_in_output", True),
        ("return_finish_reason", True),
        ("return_num_input_tokens", True),
        ("return_num_output_tokens", True),
    ):
        request.inputs.add(name=name, datatype="BOOL", shape=[1])
        request.raw_input_contents.append(b"\x01" if value else b"\x00")
    return request


def _request(model: str, options: RequestOptions, outputs: Sequence[str]) -> Any:
    request = pb.ModelInferRequest(model_name=model, id=options.request_id)
    for name, value in options.parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].string_param = value
    if options.timeout_us is not None:
        request.parameters["timeout"].int64_param = options.timeout_us
    for output in outputs:
        request.outputs.add(name=output)
    return request


def _add_strings(request: Any, name: str, values: Sequence[bytes]) -> None:
    request.inputs.add(name=name, datatype="BYTES", shape=[len(values)])
    request.raw_input_contents.append(frame(values))


def frame(values: Sequence[bytes]) -> bytes:
    """Elements of a ``BYTES`` tensor, each behind its length."""
    pack = _LENGTH.pack
    return b"".join([part for value in values for part in (pack(len(value)), value)])


def unframe(payload: bytes) -> list[bytes]:
    """The elements of a ``BYTES`` tensor.

    Raises:
        CanopyError: The lengths do not add up to the payload.
    """
    values: list[bytes] = []
    place, end = 0, len(payload)
    while place < end:
        if place + 4 > end:
            raise CanopyError(f"reply: a BYTES tensor of {end} bytes ends inside a length")
        (size,) = _LENGTH.unpack_from(payload, place)
        place += 4
        if place + size > end:
            raise CanopyError(f"reply: a BYTES tensor of {end} bytes ends inside an element")
        values.append(payload[place : place + size])
        place += size
    return values


# --- responses ------------------------------------------------------------------------------------------------------


def compress_response(response: Any, n_items: int, *, trace: bool) -> list[Evidence]:
    """One evidence an item, in the order sent.

    Raises:
        CanopyError: The reply does not have the form that the protocol states.
    """
    outputs = _raw_outputs(response)
    replies = unframe(_output(outputs, "EVIDENCE"))
    traces = unframe(outputs.get("TRACE", b"")) if trace else []
    _expect("EVIDENCE", len(replies), n_items)
    try:
        evidence = [_evidence.decode(reply) for reply in replies]
        if trace:
            _expect("TRACE", len(traces), n_items)
            evidence = [
                msgspec.structs.replace(one, trace=_trace.decode(decisions))
                for one, decisions in zip(evidence, traces, strict=True)
            ]
    except UNREADABLE as error:
        raise CanopyError(f"reply of 'compress': {told(error)}; do server and client have the same version?") from None
    return evidence


def index_response(response: Any, n_items: int) -> tuple[list[bytes], FloatArray]:
    """Tree blobs, and retrieval vectors float32 ``[n, D]``.

    Raises:
        CanopyError: As :func:`compress_response`.
    """
    outputs = _raw_outputs(response)
    trees = unframe(_output(outputs, "TREES"))
    _expect("TREES", len(trees), n_items)
    return trees, _vectors(response, outputs, "EMBEDDINGS", n_items)


def embed_query_response(response: Any, n_queries: int) -> FloatArray:
    """Query vectors, float32 ``[n, D]``.

    Raises:
        CanopyError: As :func:`compress_response`.
    """
    return _vectors(response, _raw_outputs(response), "EMBEDDING", n_queries)


@dataclass(frozen=True, slots=True)
class CriticChunk:
    """One message of the critic's stream; text of later messages continues that of earlier ones.

    Attributes:
        text: Text of this message.
        finish_reason: ``"stop"``, ``"length"`` or ``None`` where the model has not finished.
        prompt_tokens: Tokens of the prompt, 0 where not told.
        completion_tokens: Tokens generated, 0 where not told.
        final: No message follows.
    """

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    final: bool = False


def critic_chunk(message: Any) -> CriticChunk:
    """Read one ``ModelStreamInferResponse``.

    Raises:
        CanopyError: The message carries an error, mapped as :func:`error_from_status` does.
    """
    if message.error_message:
        raise error_from_status("INTERNAL", message.error_message)
    response = message.infer_response
    outputs = _raw_outputs(response)
    name = "triton_final_response"
    final = name in response.parameters and response.parameters[name].bool_param
    reason = b"".join(unframe(outputs.get("finish_reason", b""))).decode("utf-8", "replace") or None
    return CriticChunk(
        text=b"".join(unframe(outputs.get("text_output", b""))).decode("utf-8", "replace"),
        finish_reason=None if reason == "None" else reason,
        prompt_tokens=_count(outputs.get("num_input_tokens", b"")),
        completion_tokens=_count(outputs.get("num_output_tokens", b"")),
        final=final,
    )


def limits_from_config(response: Any) -> Limits:
    """The limits that a server publishes, out of the ``ModelConfigResponse`` of ``hierarchy``.

    Raises:
        InvalidRequest: A parameter is not a positive integer.
    """
    parameters = response.config.parameters
    return Limits.from_parameters({name: parameters[name].string_value for name in parameters})


def pixels_from_config(response: Any) -> bool:
    """Whether a server's encoders see pictures, out of the ``ModelConfigResponse`` of ``hierarchy``."""
    parameters = response.config.parameters
    return "pixels" in parameters and parameters["pixels"].string_value == "true"


def _raw_outputs(response: Any) -> dict[str, bytes]:
    if len(response.raw_output_contents) != len(response.outputs):
        raise CanopyError("reply: outputs without raw contents; is this a Triton server?")
    return {
        output.name: content for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _output(outputs: Mapping[str, bytes], name: str) -> bytes:
    if name not in outputs:
        # The response cache of Triton 24.10 keeps the failure of a model whose process has died, as an empty success.
        raise ServerUnavailable(f"reply: no output {name!r}")
    return outputs[name]


def _expect(name: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise CanopyError(f"reply: {name} has {actual} elements for {expected} sent")


def _vectors(response: Any, outputs: Mapping[str, bytes], name: str, n: int) -> FloatArray:
    shape = next((tuple(output.shape) for output in response.outputs if output.name == name), ())
    content = _output(outputs, name)
    if len(shape) != 2 or len(content) != 4 * shape[0] * shape[1]:
        raise CanopyError(f"reply: {name} has {len(content)} bytes for the shape {list(shape)}")
    _expect(name, shape[0], n)
    return np.frombuffer(content, np.float32).reshape(shape)


def _count(content: bytes) -> int:
    """A token count, an unsigned integer of 4 or 8 bytes; 0 where the model does not tell."""
    return int.from_bytes(content[:8], "little") if content else 0
