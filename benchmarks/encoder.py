"""The node encoder alone: the same rows through Triton over gRPC, and in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from tritonclient.grpc import InferenceServerClient, InferInput

from canopy_backend.encoding import fragment_bodies
from canopy_backend.fragments import fragment
from canopy_backend.items import Item
from canopy_backend.limits import Limits
from canopy_backend.manifest import EncoderManifest
from canopy_backend.packing import PackedRows, longest, pack, row_width
from canopy_backend.plan import plan_request
from canopy_backend.templates import node_text
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter
from canopy_backend.triton.artefacts import NODE_ENCODER
from canopy_backend.triton.encoder import GRAPH_FILE, Encoder, OpenVinoSession
from canopy_export.configs import CHUNK_TOKENS

Rows = dict[str, npt.NDArray[np.int64]]

#: Tokens of one call of the session, one of which may be the faster: what the server's configuration says, or all.
_CHUNKS: Final = (1024, 1 << 30)


@dataclass(frozen=True)
class Texts:
    """Texts that every encoder gets.

    Attributes:
        texts: Sentences with the title of their item, as the node encoder reads them.
        rows: Their packed rows.
        tokens: Tokens of the texts, padding not counted.
    """

    texts: list[str]
    rows: PackedRows
    tokens: int


class Repository:
    """Encoders that were exported to a model repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._graph = folder / NODE_ENCODER / "1" / GRAPH_FILE
        self.manifest = EncoderManifest.load(folder / "node_encoder" / "manifest.json")
        self.tokenizer = EncoderTokenizer(folder / "node_encoder" / "tokenizer.json", self.manifest.window)
        self.counter = TokenCounter(folder / "hierarchy" / "reader_tokenizer.json")

    def sentences(self, items: Sequence[Item]) -> Texts:
        """The sentences of items as texts and as rows."""
        texts = [node_text(item, body) for item in items for body in fragment_bodies(item, fragment(item))[1]]
        sequences = [ids[: self.manifest.window] for ids in self.tokenizer.encode(texts)]
        rows = pack(sequences, row_width(longest(sequences)))
        return Texts(texts, rows, sum(map(len, sequences)))

    def planned(self, items: Sequence[Item]) -> tuple[PackedRows, int]:
        """The rows of one cold request with all nodes of ``items``, and how many of their tokens are real."""
        rows, _ = plan_request(
            items,
            tokenizer=self.tokenizer,
            counter=self.counter,
            revision=self.manifest.revision,
            limits=Limits(),
            node_encoding=self.manifest.node_encoding,
        )
        return rows, int((rows.segment_ids > 0).sum())

    def served(self) -> Encoder:
        """The node encoder in this process as the embedded profile runs it, a thread a core."""
        session = OpenVinoSession(self._graph, threads=os.cpu_count() or 1, precision=self.manifest.precision)
        return Encoder(session, chunk_tokens=CHUNK_TOKENS)

    def session(self) -> Any:
        """The node encoder's graph in ONNX Runtime in this process, a thread a core."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        options.inter_op_num_threads = 1
        return ort.InferenceSession(str(self._graph), options, providers=["CPUExecutionProvider"])


def inputs_of(rows: PackedRows) -> Rows:
    """Rows as the node encoder's inputs."""
    return {
        "input_ids": rows.input_ids,
        "segment_ids": rows.segment_ids,
        "position_ids": rows.position_ids,
        "slot_ids": rows.slot_ids,
    }


def run_session(session: Any, inputs: Rows, chunk_tokens: int) -> None:
    """All rows through a session, ``chunk_tokens`` at a time."""
    count, width = inputs["input_ids"].shape
    step = max(1, chunk_tokens // width)
    for start in range(0, count, step):
        session.run(None, {name: array[start : start + step] for name, array in inputs.items()})


def best_chunk(session: Any, inputs: Rows) -> int:
    """Which of :data:`_CHUNKS` the session is faster with, so that Triton is held against its best."""
    from benchmarks.timing import median_ms

    return min(_CHUNKS, key=lambda chunk: median_ms(lambda: run_session(session, inputs, chunk), 2))


class NodeEncoder:
    """The served node encoder."""

    def __init__(self, url: str) -> None:
        self._client = InferenceServerClient(url)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def run(self, inputs: Rows) -> None:
        """Encode rows in one request."""
        tensors = []
        for name, array in inputs.items():
            tensor = InferInput(name, list(array.shape), "INT64")
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        self._client.infer("node_encoder", tensors)
