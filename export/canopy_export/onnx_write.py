"""One way from a graph in torch to an ONNX file, its weights beside it where they are too large for one."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import onnx
import torch

from canopy_export.source import OPSET

#: Weights of more bytes than this go into a file beside the graph; protobuf ends at 2 GiB, the graph itself needs room.
EXTERNAL_OVER: Final = 1_900_000_000
#: Bytes of a tensor that stays in the graph all the same.
_SMALL: Final = 1024


def data_file(path: Path) -> Path:
    """Where the weights of a graph stand if not in it; the graph names this file relative to its own folder."""
    return path.with_name(f"{path.name}.data")


def write_onnx(
    graph: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    path: Path,
    outputs: Sequence[str],
    axes: Mapping[str, dict[int, str]],
    *,
    external_over: int = EXTERNAL_OVER,
) -> None:
    """Trace a graph and write it.

    Args:
        graph: In the precision that the file gets.
        inputs: An example, in the order of the graph's arguments; sizes of free axes are not frozen.
        path: The file.
        outputs: Names of the outputs.
        axes: For each input and output the names of its free axes.
        external_over: Bytes of weights from which on they get a file of their own, see :func:`data_file`.
    """
    # The exporter leaves one file a tensor where the whole is over 2 GB, so it gets a folder of its own.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        first = Path(folder) / path.name
        with warnings.catch_warnings(), torch.inference_mode():
            # The trace-based route writes self-contained files and needs no further package; its deprecation and its
            # remarks on shape conditions are answered by the callers' checks on unseen shapes.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph,
                tuple(inputs.values()),
                str(first),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes=dict(axes),
                opset_version=OPSET,
                dynamo=False,
            )
        data = data_file(path)
        data.unlink(missing_ok=True)
        if sum(file.stat().st_size for file in Path(folder).iterdir()) <= external_over:
            os.replace(first, path)
            return
        onnx.save_model(
            onnx.load(str(first)),
            str(path),
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=data.name,
            size_threshold=_SMALL,
        )
        data.chmod(0o644)  # the library leaves it to its owner alone, and the server is another user
