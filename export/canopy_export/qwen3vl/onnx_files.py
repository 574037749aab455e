"""The graphs of a Qwen3-VL as ONNX files, and the runtimes that check them."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import torch

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Precision
from canopy_export.onnx_session import OnnxSession
from canopy_export.qwen3vl.graphs import LANGUAGE_INPUTS, VISION_INPUTS, VISION_OUTPUTS, LanguageGraph, VisionGraph
from canopy_export.source import OPSET

#: Weights of more bytes than this go into a file beside the graph; protobuf ends at 2 GiB, the graph itself needs room.
EXTERNAL_OVER: Final = 1_900_000_000
#: Names of the axes that are free in each tensor.
_LANGUAGE_AXES: Final = {
    "input_ids": {0: "rows", 1: "tokens"},
    "segment_ids": {0: "rows", 1: "tokens"},
    "position_ids": {0: "rows", 2: "tokens"},
    "last_index": {0: "rows", 1: "slots"},
    "visual_index": {0: "rows", 1: "tokens"},
    "visual": {0: "visual_tokens"},
    "deepstack": {1: "visual_tokens"},
    "embeddings": {0: "rows", 1: "slots"},
}
_VISION_AXES: Final = {
    **{name: {0: "patches"} for name in VISION_INPUTS},
    "visual": {0: "visual_tokens"},
    "deepstack": {1: "visual_tokens"},
}

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
Run = Callable[[Inputs], list[Array]]


def write_language(graph: LanguageGraph, inputs: Inputs, path: Path, *, external_over: int = EXTERNAL_OVER) -> None:
    """Write the language graph.

    Args:
        graph: The graph, in the precision that the file gets.
        inputs: An example by :data:`LANGUAGE_INPUTS`; its sizes are not frozen.
        path: The file; weights go into ``<name>.data`` beside it where they are too large for one.
        external_over: Bytes of weights from which on that happens.
    """
    example = {name: inputs[name] for name in LANGUAGE_INPUTS}
    _write(graph, example, path, ["embeddings"], _LANGUAGE_AXES, external_over)


def write_vision(graph: VisionGraph, inputs: Inputs, path: Path, *, external_over: int = EXTERNAL_OVER) -> None:
    """Write the vision graph; arguments as for :func:`write_language`, the example by :data:`VISION_INPUTS`."""
    example = {name: inputs[name] for name in VISION_INPUTS}
    _write(graph, example, path, list(VISION_OUTPUTS), _VISION_AXES, external_over)


def run_torch(graph: torch.nn.Module, inputs: Inputs) -> list[Array]:
    """All outputs of a graph in torch, for inputs in the order of its arguments."""
    with torch.inference_mode():
        outputs = graph(*(torch.from_numpy(np.ascontiguousarray(one)) for one in inputs.values()))
    return [one.numpy() for one in (outputs if isinstance(outputs, tuple) else (outputs,))]


def load_file(path: Path, precision: Precision) -> Run:
    """A file on the CPU: bfloat16 in OpenVINO, which alone has it there, all else in ONNX Runtime.

    Returns:
        From inputs by name to all outputs.

    Raises:
        ExportError: The file cannot be loaded.
    """
    if precision != "bf16":
        return OnnxSession(path).outputs
    import openvino

    try:
        model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    except RuntimeError as error:
        raise ExportError(f"graph {str(path)!r}: {error}") from None

    def run(inputs: Inputs) -> list[Array]:
        answer = model(dict(inputs))
        return [np.array(answer[place]) for place in range(len(model.outputs))]

    return run


def _write(
    graph: torch.nn.Module,
    inputs: Inputs,
    path: Path,
    outputs: list[str],
    axes: Mapping[str, dict[int, str]],
    external_over: int,
) -> None:
    # The exporter leaves one file a tensor where the whole is over 2 GB, so it gets a folder of its own.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        first = Path(folder) / path.name
        with warnings.catch_warnings(), torch.inference_mode():
            # As for the other graphs: the trace-based route, whose remarks the checks on unseen shapes answer.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph,
                tuple(torch.from_numpy(np.ascontiguousarray(one)) for one in inputs.values()),
                str(first),
                input_names=list(inputs),
                output_names=outputs,
                dynamic_axes=dict(axes),
                opset_version=OPSET,
                dynamo=False,
            )
        weights = sum(file.stat().st_size for file in Path(folder).iterdir())
        data = path.with_name(path.name + ".data")
        data.unlink(missing_ok=True)
        if weights <= external_over:
            os.replace(first, path)
            return
        model = onnx.load(str(first))
        onnx.save_model(
            model,
            str(path),
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=data.name,
            size_threshold=1024,
        )
        data.chmod(0o644)  # the library leaves it to its owner alone, and the server is another user
