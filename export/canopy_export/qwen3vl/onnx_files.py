"""The graphs of a Qwen3-VL as ONNX files, and the runtimes that check them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Precision
from canopy_export.onnx_session import OnnxSession
from canopy_export.onnx_write import EXTERNAL_OVER, write_onnx
from canopy_export.qwen3vl.graphs import LANGUAGE_INPUTS, VISION_INPUTS, VISION_OUTPUTS, LanguageGraph, VisionGraph

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
        path: The file.
        external_over: As for :func:`canopy_export.onnx_write.write_onnx`.
    """
    example = _tensors({name: inputs[name] for name in LANGUAGE_INPUTS})
    write_onnx(graph, example, path, ["embeddings"], _LANGUAGE_AXES, external_over=external_over)


def write_vision(graph: VisionGraph, inputs: Inputs, path: Path, *, external_over: int = EXTERNAL_OVER) -> None:
    """Write the vision graph; arguments as for :func:`write_language`, the example by :data:`VISION_INPUTS`."""
    example = _tensors({name: inputs[name] for name in VISION_INPUTS})
    write_onnx(graph, example, path, VISION_OUTPUTS, _VISION_AXES, external_over=external_over)


def run_torch(graph: torch.nn.Module, inputs: Inputs) -> list[Array]:
    """All outputs of a graph in torch, for inputs in the order of its arguments."""
    with torch.inference_mode():
        outputs = graph(*_tensors(inputs).values())
    return [one.numpy() for one in (outputs if isinstance(outputs, tuple) else (outputs,))]


def load_file(path: Path, precision: Precision) -> Run:
    """A file on the CPU: bfloat16 in OpenVINO, which alone has it there, all else in ONNX Runtime.

    A CPU that does not multiply in bfloat16 does it in float32, on the file's weights.

    Returns:
        From inputs by name to all outputs.

    Raises:
        ExportError: The file cannot be loaded.
    """
    if precision != "bf16":
        return OnnxSession(path).outputs
    import openvino

    try:
        model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    except RuntimeError as error:
        raise ExportError(f"graph {str(path)!r}: {error}") from None

    def run(inputs: Inputs) -> list[Array]:
        answer = model(dict(inputs))
        return [np.array(answer[place]) for place in range(len(model.outputs))]

    return run


def _tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in inputs.items()}
