"""A graph in ONNX Runtime on the CPU: the runtime that gates compare with torch and with what a profile serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from canopy_backend.errors import ExportError
from canopy_backend.triton.tensors import Array


class OnnxSession:
    """A graph in ONNX Runtime, float32, a :class:`canopy_backend.triton.encoder.Session`.

    Args:
        path: The ONNX file.
        threads: Threads of one call; 0 is one for each CPU that this process may use.

    Attributes:
        inputs: Names of the graph's inputs.

    Raises:
        ExportError: The file is missing or cannot be loaded.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        import onnxruntime

        if not path.is_file():
            raise ExportError(f"encoder graph {str(path)!r}: no such file; run the export")
        options = onnxruntime.SessionOptions()
        # ONNX Runtime's own choice counts physical cores only and leaves half of a small machine idle.
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        options.inter_op_num_threads = 1
        # Waiting threads would spin on cores that others need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises several types of its own
            raise ExportError(f"encoder graph {str(path)!r}: {error}") from None
        self.inputs = tuple(one.name for one in self._session.get_inputs())

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """Inputs by name, each int64 ``[n, L]``, to the output float32 ``[n, ...]``."""
        return self.outputs(inputs)[0]

    def outputs(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Inputs by name, of the graph's own shapes and types, to all of its outputs."""
        return [np.asarray(one) for one in self._session.run(None, dict(inputs))]
