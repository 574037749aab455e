"""A LoRA adapter merged into its backbone, in float32, before anything is exported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from torch import nn

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Pooling
from canopy_export.graphs import QueryGraph
from canopy_export.onnx_graph import query_rows

#: Smallest cosine between a vector with the adapter switched on and with it merged.
MIN_COSINE: Final = 0.9999
#: What ``peft`` raises for an adapter that is damaged or made for another model.
UNREADABLE: Final = (OSError, RuntimeError, ValueError, KeyError, SafetensorError)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Without peft's warning about an attribute that transformers has renamed; nothing that a user could change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing", category=FutureWarning)
        yield


def merge_adapter(backbone: nn.Module, adapter: Path, pooling: Pooling, vocabulary: int) -> nn.Module:
    """Merge an adapter into a backbone, which is changed, and check that the vectors stay those of the adapter.

    Raises:
        ExportError: The adapter does not fit the backbone, or merging changes vectors.
    """
    from peft import PeftModel

    try:
        with quiet_peft():
            adapted = PeftModel.from_pretrained(backbone, str(adapter), is_trainable=False).eval()
    except UNREADABLE as error:
        raise ExportError(f"{adapter}: the adapter does not fit the model ({error})") from error
    inputs = tuple(query_rows(vocabulary, [24, 16, 9, 3], 24).values())
    with torch.inference_mode():
        expected = QueryGraph(adapted.get_base_model(), pooling).eval()(*inputs)
    merged: nn.Module = adapted.merge_and_unload(safe_merge=True).float().eval()
    with torch.inference_mode():
        actual = QueryGraph(merged, pooling).eval()(*inputs)
    cosine = float((expected * actual).sum(1).min())
    if not cosine >= MIN_COSINE:
        raise ExportError(f"{adapter}: merging moves a vector to cosine {cosine:.6f}, limit {MIN_COSINE}")
    return merged
