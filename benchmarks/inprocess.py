"""The same encoders without a server: ONNX Runtime in this process, on the tokens that the server would encode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from canopy_backend.encoding import plan_nodes
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Item
from canopy_backend.manifest import EncoderManifest
from canopy_backend.packing import longest, pack, row_width
from canopy_backend.templates import query_text
from canopy_backend.tokenization import EncoderTokenizer, pad


@dataclass(frozen=True)
class InProcess:
    """Medians in milliseconds of one call, and how many tokens it computes.

    Attributes:
        packed_ms: All sequences of the items in packed rows, as the server encodes them.
        padded_ms: The same sequences in one padded batch, as a library would.
        query_ms: One query.
        real_tokens: Tokens of the sequences.
        packed_tokens: Tokens computed in packed rows, padding included.
        padded_tokens: Tokens computed in the padded batch.
    """

    packed_ms: float
    padded_ms: float
    query_ms: float
    real_tokens: int
    packed_tokens: int
    padded_tokens: int


def measure(repository: Path, items: list[Item], query: str, *, threads: int, repeats: int) -> InProcess:
    """Time the exported encoders on the nodes of ``items``.

    Args:
        repository: Model repository with exported encoders.
        items: Cold items.
        query: A query.
        threads: Threads of a call.
        repeats: Calls of which the median is taken, after one that does not count.
    """
    manifest = EncoderManifest.load(repository / "node_encoder" / "manifest.json")
    tokenizer = EncoderTokenizer(repository / "node_encoder" / "tokenizer.json", manifest.window)
    sequences: list[list[int]] = []
    layouts: list[list[int]] = []
    for item in items:
        fragments = fragment(item)
        plan = plan_nodes(item, fragments, balanced(len(fragments)), tokenizer, manifest.node_encoding)
        sequences += plan.sequences
        layouts += plan.layouts or ()
    rows = pack(sequences, row_width(longest(sequences, layouts or None)), layouts or None)
    ids, mask = pad(sequences)
    query_ids, query_mask = pad(tokenizer.encode([query_text(query)]))
    node = _session(repository / "node_encoder/1/model.onnx", threads)
    single = _session(repository / "query_encoder/1/model.onnx", threads)
    packed = {
        "input_ids": rows.input_ids,
        "segment_ids": rows.segment_ids,
        "position_ids": rows.position_ids,
        "slot_ids": rows.slot_ids,
    }
    return InProcess(
        packed_ms=_median_ms(lambda: node.run(None, packed), repeats),
        padded_ms=_median_ms(lambda: single.run(None, {"input_ids": ids, "attention_mask": mask}), repeats),
        query_ms=_median_ms(lambda: single.run(None, {"input_ids": query_ids, "attention_mask": query_mask}), repeats),
        real_tokens=sum(map(len, sequences)),
        packed_tokens=rows.input_ids.size,
        padded_tokens=ids.size,
    )


def _session(path: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _median_ms(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1000)
