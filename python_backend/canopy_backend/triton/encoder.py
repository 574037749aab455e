"""An encoder inside the server's Python backend: the exported graph in ONNX Runtime on the CPU."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from canopy_backend.errors import DeadlineExceeded, ExportError, InvalidRequest, code_of
from canopy_backend.triton import tensors
from canopy_backend.triton.backend import prepare_process
from canopy_backend.triton.errors import to_triton
from canopy_backend.triton.metrics import Metrics, Tally
from canopy_backend.triton.model import Setting
from canopy_backend.triton.tensors import Array

GRAPH_FILE: Final = "model.onnx"


class OnnxEncoder:
    """An exported graph.

    Args:
        path: The ONNX file.
        threads: Threads of one call; 0 is one for each CPU that this process may use.
        chunk_tokens: Most tokens of one call, padding included; more rows go through in several calls.

    Attributes:
        inputs: Names of the graph's inputs, each int64 ``[n, L]``; the second is zero where padding is.

    Raises:
        ExportError: The file is missing or cannot be loaded.
    """

    def __init__(self, path: Path, *, threads: int = 0, chunk_tokens: int = 1024) -> None:
        import onnxruntime

        if not path.is_file():
            raise ExportError(f"encoder graph {str(path)!r}: no such file; run the export")
        options = onnxruntime.SessionOptions()
        # ONNX Runtime's own choice counts physical cores only and leaves half of a small machine idle.
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        options.inter_op_num_threads = 1
        # Waiting threads would spin on cores that the other models of the server need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises several types of its own
            raise ExportError(f"encoder graph {str(path)!r}: {error}") from None
        self._chunk_tokens = chunk_tokens
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self._shapes: dict[int, tuple[int, ...]] = {}

    def __call__(self, inputs: Mapping[str, Array], *, until: float = math.inf) -> Array:
        """Encode n rows of one length: float32 ``[n, ...]``; a row that is all padding is zeros and costs nothing.

        Args:
            inputs: The graph's inputs by name.
            until: Moment of :func:`time.monotonic` after which no further call of the graph is begun.

        Raises:
            DeadlineExceeded: It passed.
        """
        used: npt.NDArray[np.bool_] = np.asarray(inputs[self.inputs[1]].any(axis=1))
        if used.all():
            return self._chunks(inputs, until)
        width = inputs[self.inputs[1]].shape[1]
        outputs = np.zeros((len(used), *self._row_shape(width)), np.float32)
        if used.any():
            outputs[used] = self._chunks({name: array[used] for name, array in inputs.items()}, until)
        return outputs

    def _row_shape(self, width: int) -> tuple[int, ...]:
        """Shape of one row's output, which only the graph knows: asked once a width."""
        if width not in self._shapes:
            empty = dict.fromkeys(self.inputs, np.zeros((1, width), np.int64))
            self._shapes[width] = self._chunks(empty, math.inf).shape[1:]
        return self._shapes[width]

    def _chunks(self, inputs: Mapping[str, Array], until: float) -> Array:
        rows, width = next(iter(inputs.values())).shape
        step = max(1, self._chunk_tokens // width)
        chunks = []
        for start in range(0, rows, step):
            if time.monotonic() > until:
                raise DeadlineExceeded(f"the time of the request was over after {start} of {rows} rows")
            part = {name: array[start : start + step] for name, array in inputs.items()}
            chunks.append(self._session.run(None, part)[0])
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def together(self, requests: Sequence[Mapping[str, Array]], *, until: float = math.inf) -> list[Array]:
        """Encode the rows of several requests; those of equal length go through in one batch.

        Args:
            requests: Their inputs by name.
            until: As above.

        Returns:
            The output of each request, in order.
        """
        outputs: list[Array] = [np.empty(0)] * len(requests)
        widths = [next(iter(inputs.values())).shape[1] for inputs in requests]
        for width in sorted(set(widths)):
            places = [place for place, other in enumerate(widths) if other == width]
            batch = {name: np.concatenate([requests[place][name] for place in places]) for name in self.inputs}
            sizes = [len(requests[place][self.inputs[0]]) for place in places]
            parts = np.split(self(batch, until=until), np.cumsum(sizes)[:-1])
            for place, part in zip(places, parts, strict=True):
                outputs[place] = part
        return outputs


def give_up_at(timeouts_us: Sequence[int]) -> float:
    """When nobody waits any more for what requests of one batch ask for, on the clock of :func:`time.monotonic`.

    The server does not tell the steps of an ensemble that a caller has gone. It hands on the time that the caller gave
    the request, so work for nobody ends by then, counted from its start here.

    Args:
        timeouts_us: Each request's time in microseconds; 0 for one without a bound.
    """
    return time.monotonic() + max(timeouts_us) / 1e6 if timeouts_us and min(timeouts_us) > 0 else math.inf


class EncoderModel:
    """``query_encoder`` and ``node_encoder`` of the embedded profile; parameters ``threads`` and ``chunk_tokens``."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by the server when it loads the model."""
        prepare_process()
        setting = Setting.from_args(args)
        self._stage = setting.folder.name
        (self._output,) = setting.outputs
        self._cached = setting.cached
        self._encoder = OnnxEncoder(
            setting.folder / setting.version / GRAPH_FILE,
            threads=int(setting.parameters["threads"]),
            chunk_tokens=int(setting.parameters["chunk_tokens"]),
        )
        self._metrics = Metrics(self._stage)

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
                responses[place] = self._failure(error, tally)
        # An error of a model with a response cache must be the request's own fault: the server keeps it, and answers
        # the next request that is equal with a success that has no outputs.
        until = math.inf if self._cached else give_up_at([requests[place].timeout() for place in good])
        try:
            outputs = self._encoder.together(list(good.values()), until=until) if good else []
        except Exception as error:  # all of them went through one call
            for place in good:
                responses[place] = self._failure(error, tally)
            return responses
        for place, output in zip(good, outputs, strict=True):
            responses[place] = tensors.response({self._output: output})
        return responses

    def _read(self, request: Any) -> dict[str, Array]:
        inputs = {name: tensors.read(request, name) for name in self._encoder.inputs}
        shapes = {array.shape for array in inputs.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2:
            raise InvalidRequest(f"inputs {', '.join(inputs)}: must have one shape [rows, tokens], not {shapes}")
        return inputs

    def _failure(self, error: Exception, tally: Tally) -> Any:
        tally.add("canopy_errors_total", code=code_of(error))
        return tensors.failure(to_triton(error, self._stage))
