"""An encoder inside the server's Python backend: the exported graph in OpenVINO on the CPU."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import DeadlineExceeded, ExportError, InvalidRequest, code_of
from canopy_backend.manifest import MANIFEST_FILE, EncoderManifest, Precision
from canopy_backend.packing import TOKENS_A_SLOT
from canopy_backend.triton import tensors
from canopy_backend.triton.backend import prepare_process
from canopy_backend.triton.errors import to_triton
from canopy_backend.triton.logs import RequestLog
from canopy_backend.triton.metrics import Metrics, Tally
from canopy_backend.triton.model import Setting
from canopy_backend.triton.tensors import Array
from canopy_backend.triton.waiting import give_up_at

GRAPH_FILE: Final = "model.onnx"
#: OpenVINO's names of the precisions.
_HINTS: Final[dict[Precision, str]] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
#: Rows are cut to whole slots. A shape that the runtime has not met costs some milliseconds once, and a query of 20
#: tokens that is computed as 32 costs half as much again every time.
_COLUMNS: Final = TOKENS_A_SLOT
#: Input of the node graph whose values need room in its output.
_SLOTS: Final = "slot_ids"


class Session(Protocol):
    """A loaded graph: one call of its runtime.

    Attributes:
        inputs: Names of the graph's inputs, the row first in each. Integers have a column for each token, the first two
            nothing besides: int64 ``[n, L]``; the second is zero where padding is.
    """

    inputs: tuple[str, ...]

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """Inputs by name to the output float32 ``[n, ...]``, which is the caller's until the next call."""


class OpenVinoSession:
    """A graph in OpenVINO on the CPU.

    Args:
        path: The ONNX file.
        threads: Threads of one call; 0 is one for each CPU that this process may use.
        precision: ``bf16`` multiplies matrices in bfloat16 and keeps sums, norms and pooling in float32; ``fp16`` is
            for graphs of that type. A CPU without the type does everything in float32.

    Raises:
        ExportError: The file is missing or cannot be loaded, or the precision is not one of the three.
    """

    def __init__(self, path: Path, *, threads: int = 0, precision: Precision = "fp32") -> None:
        import openvino

        if not path.is_file():
            raise ExportError(f"encoder graph {str(path)!r}: no such file; run the export")
        if precision not in _HINTS:
            raise ExportError(f"encoder graph {str(path)!r}: precision {precision!r} is not one of {', '.join(_HINTS)}")
        settings = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "INFERENCE_NUM_THREADS": threads or len(os.sched_getaffinity(0)),
            "NUM_STREAMS": 1,
            # The server's other models need the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            core = openvino.Core()
            self._request = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()
        except Exception as error:  # the library raises several types of its own
            raise ExportError(f"encoder graph {str(path)!r}: {error}") from None
        self.inputs = tuple(one.any_name for one in self._request.model_inputs)

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """See :class:`Session`."""
        return self.outputs(inputs)[0]

    def outputs(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Inputs by name, of the graph's own shapes and types, to all outputs, the caller's until the next call."""
        answer = self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [answer[place] for place in range(len(answer))]


def calls(
    inputs: Mapping[str, Array], names: Sequence[str], chunk_tokens: int
) -> Iterator[tuple[npt.NDArray[np.intp], int]]:
    """What goes through a graph together: rows, the longest first, and how many of their columns.

    Args:
        inputs: The graph's inputs by name, see :class:`Session`.
        names: Their names in the graph's order.
        chunk_tokens: Most tokens of one call.
    """
    lengths = _lengths(inputs, names)
    order = np.argsort(-lengths, kind="stable")
    width = inputs[names[0]].shape[1]
    start, used = 0, int(np.count_nonzero(lengths))
    while start < used:
        cut = min(width, -(-int(lengths[order[start]]) // _COLUMNS) * _COLUMNS)
        chosen = order[start : min(used, start + max(1, chunk_tokens // cut))]
        yield chosen, cut
        start += len(chosen)


def _per_token(array: Array) -> bool:
    """Whether an input has a column for each token; features of a row have not."""
    return array.dtype == np.int64


def _columns(array: Array, cut: int) -> Array:
    """Rows without the columns behind ``cut``."""
    return array[..., :cut] if _per_token(array) else array


def _lengths(inputs: Mapping[str, Array], names: Sequence[str]) -> npt.NDArray[np.intp]:
    """Columns of each row that must be there: up to its last token, and enough for its slots."""
    real = inputs[names[1]] != 0
    lengths = np.where(real.any(axis=1), real.shape[1] - np.argmax(real[:, ::-1], axis=1), 0)
    if _SLOTS in names:
        lengths = np.maximum(lengths, TOKENS_A_SLOT * inputs[_SLOTS].max(axis=1, initial=0))
    return lengths


class Encoder:
    """An exported graph that encodes no padding which it can leave out.

    Args:
        session: The graph.
        chunk_tokens: Most tokens of one call, padding included; more rows go through in several calls.

    Attributes:
        inputs: Names of the graph's inputs.
    """

    def __init__(self, session: Session, *, chunk_tokens: int = 1024) -> None:
        self._session = session
        self._chunk_tokens = chunk_tokens
        self.inputs = session.inputs
        self._shapes: dict[int, tuple[int, ...]] = {}

    def __call__(self, inputs: Mapping[str, Array], *, until: float = math.inf) -> Array:
        """Encode n rows of one length: float32 ``[n, ...]``; a row that is all padding is zeros and costs nothing.

        Rows go through the longest first, so that those of one call are about equally long, and the columns that are
        padding in all of them are left out.

        Args:
            inputs: The graph's inputs by name.
            until: Moment of :func:`time.monotonic` after which no further call of the graph is begun.

        Raises:
            DeadlineExceeded: It passed.
        """
        rows = len(inputs[self.inputs[0]])
        outputs = np.zeros((rows, *self._row_shape(inputs)), np.float32)
        done = 0
        for chosen, cut in calls(inputs, self.inputs, self._chunk_tokens):
            if time.monotonic() > until:
                raise DeadlineExceeded(f"the time of the request was over after {done} of {rows} rows")
            part = self._session({name: _columns(inputs[name][chosen], cut) for name in self.inputs})
            # Fewer columns have fewer slots; those that are missing hold nothing.
            place: tuple[Any, ...] = (chosen, *(slice(size) for size in part.shape[1:]))
            outputs[place] = part
            done += len(chosen)
        return outputs

    def _row_shape(self, inputs: Mapping[str, Array]) -> tuple[int, ...]:
        """Shape of one row's output, which only the graph knows: asked once a width."""
        width = inputs[self.inputs[0]].shape[1]
        if width not in self._shapes:
            empty = {name: np.zeros((1, *inputs[name].shape[1:]), inputs[name].dtype) for name in self.inputs}
            self._shapes[width] = self._session(empty).shape[1:]
        return self._shapes[width]

    def together(self, requests: Sequence[Mapping[str, Array]], *, until: float = math.inf) -> list[Array]:
        """Encode the rows of several requests; those of equal shape go through in one batch.

        Args:
            requests: Their inputs by name.
            until: As above.

        Returns:
            The output of each request, in order.
        """
        outputs: list[Array] = [np.empty(0)] * len(requests)
        shapes = [tuple(inputs[name].shape[1:] for name in self.inputs) for inputs in requests]
        for shape in sorted(set(shapes)):
            places = [place for place, other in enumerate(shapes) if other == shape]
            batch = {name: np.concatenate([requests[place][name] for place in places]) for name in self.inputs}
            sizes = [len(requests[place][self.inputs[0]]) for place in places]
            parts = np.split(self(batch, until=until), np.cumsum(sizes)[:-1])
            for place, part in zip(places, parts, strict=True):
                outputs[place] = part
        return outputs


class EncoderModel:
    """``query_encoder`` and ``node_encoder`` of the embedded profile; parameters ``threads`` and ``chunk_tokens``."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by the server when it loads the model."""
        prepare_process()
        setting = Setting.from_args(args)
        self._stage = setting.folder.name
        (self._output,) = setting.outputs
        self._cached = setting.cached
        session = OpenVinoSession(
            setting.folder / setting.version / GRAPH_FILE,
            threads=int(setting.parameters["threads"]),
            precision=EncoderManifest.load(setting.folder / MANIFEST_FILE).precision,
        )
        self._encoder = Encoder(session, chunk_tokens=int(setting.parameters["chunk_tokens"]))
        self._metrics = Metrics(self._stage)
        self._log = RequestLog.of_environment(self._stage)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Called by the server with the requests that its batcher put together; one response a request."""
        tally = Tally()
        with tally.timed():
            responses = self._responses(requests, tally)
        self._metrics.flush(tally)
        return responses

    def _responses(self, requests: list[Any], tally: Tally) -> list[Any]:
        responses: list[Any] = [None] * len(requests)
        good: dict[int, dict[str, Array]] = {}
        for place, request in enumerate(requests):
            try:
                good[place] = self._read(request)
            except Exception as error:  # one bad request must not fail those beside it
                responses[place] = self._failure(request, error, tally)
        # An error of a model with a response cache must be the request's own fault: the server keeps it, and answers
        # the next request that is equal with a success that has no outputs.
        until = math.inf if self._cached else give_up_at([requests[place].timeout() for place in good])
        started = time.monotonic()
        try:
            outputs = self._encoder.together(list(good.values()), until=until) if good else []
        except Exception as error:  # all of them went through one call
            for place in good:
                responses[place] = self._failure(requests[place], error, tally)
            return responses
        for place, output in zip(good, outputs, strict=True):
            responses[place] = tensors.response({self._output: output})
            self._log.answered(requests[place].request_id(), time.monotonic() - started)
        return responses

    def _read(self, request: Any) -> dict[str, Array]:
        inputs = {name: tensors.read(request, name) for name in self._encoder.inputs}
        shape = inputs[self._encoder.inputs[0]].shape
        for name, array in inputs.items():
            ends = (array.shape[:1], array.shape[-1:]) if _per_token(array) else (array.shape[:1], shape[1:])
            if len(shape) != 2 or ends != (shape[:1], shape[1:]):
                shapes = {one: list(other.shape) for one, other in inputs.items()}
                raise InvalidRequest(f"inputs must agree in rows and tokens, {name!r} does not: {shapes}")
        return inputs

    def _failure(self, request: Any, error: Exception, tally: Tally) -> Any:
        tally.add("canopy_errors_total", code=code_of(error))
        self._log.failed(request.request_id(), error)
        return tensors.failure(to_triton(error, self._stage))
