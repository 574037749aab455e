"""Vectors from a model folder, with or without an adapter, in this process: the graphs that are exported, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from canopy_backend.hierarchy import BRANCHING
from canopy_backend.items import Item
from canopy_backend.limits import Limits
from canopy_backend.manifest import CARD_FILE, AdapterCard, NodeEncoding
from canopy_backend.plan import RequestPlan, plan_request
from canopy_backend.templates import query_text
from canopy_backend.tokenization import TokenCounter, pad
from canopy_export.adapter import merge_adapter
from canopy_export.graphs import NodeGraph, QueryGraph, load_backbone, vocabulary_of
from canopy_export.source import Source, adapter_revision, node_encoding_of, read_source
from canopy_training.evaluation.vectors import EncodedItem, Omissions, SourceCard

#: Tokens that go through the encoder at once, padding included, by kind of device. On a CPU few: activations that
#: stay in the cache, and in memory that the allocator keeps, halve the time.
_TOKENS: Final = {"cpu": 1024, "cuda": 65_536}
#: Queries that are encoded at once.
_QUERIES: Final = 64
#: No request is made here, so no limit of one applies; memory is bounded by ``_TOKENS``.
_LIMITS: Final = Limits(max_items=1 << 30, max_fragments=1 << 30, max_rows=1 << 30)
#: Stands for the encoder's revision in trees that live no longer than the evaluation.
_REVISION: Final = "0" * 16

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Setup:
    """How a local encoder is put together.

    Attributes:
        base: sentence-transformers folder.
        adapter: LoRA adapter folder of the node encoder.
        node_encoding: How nodes are encoded.
        branching: Most children of a node.
        reader_tokenizer: ``tokenizer.json`` of the model that reads the evidence.
        precision: ``bf16`` runs the encoder under autocast: faster on some machines, vectors less exact.
        name: What the report calls it; by default ``tuned`` with an adapter, else ``frozen``.
        model_name: What the report calls the base; by default as its own configuration says.
    """

    base: Path
    reader_tokenizer: Path
    adapter: Path | None = None
    node_encoding: NodeEncoding = "separate"
    branching: int = BRANCHING
    precision: Precision = "fp32"
    name: str = ""
    model_name: str | None = None


def settle(
    base: Path, adapter: Path | None, node_encoding: NodeEncoding | None, branching: int | None
) -> tuple[NodeEncoding, int]:
    """Node encoding and branching: as asked, else as the adapter's card says, else the defaults.

    Another branching than the adapter was trained with is allowed, since nothing in its weights depends on it.

    Raises:
        ExportError: The adapter's folder holds none, or it was trained for another base, template or node encoding, or
            the base's pooling does not allow the encoding.
    """
    if adapter is not None:
        adapter_revision(adapter)  # where the folder is not there, peft would look for it on a hub
    encoding = node_encoding_of(read_source(base), adapter, node_encoding)
    if branching is None and adapter is not None and (adapter / CARD_FILE).is_file():
        branching = AdapterCard.load(adapter).branching
    return encoding, branching or BRANCHING


class LocalSource:
    """A base model as query encoder, and the same with the adapter as node encoder.

    Raises:
        ExportError: The model or the adapter cannot be used.
        TrainingError: The encoder's pooling does not allow the node encoding.
    """

    def __init__(self, setup: Setup) -> None:
        source = read_source(setup.base)
        node_encoding_of(source, setup.adapter, setup.node_encoding)
        self._setup = setup
        self._query_tokenizer = source.encoder_tokenizer("query")
        self._node_tokenizer = source.encoder_tokenizer("node")
        self._counter = TokenCounter(setup.reader_tokenizer)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._query, self._node = _graphs(source, setup.adapter, self._device)
        self._omissions = Omissions()
        self._card = SourceCard(
            name=setup.name or ("tuned" if setup.adapter else "frozen"),
            model=setup.model_name or source.name,
            revision=source.revision,
            adapter=adapter_revision(setup.adapter) if setup.adapter else "",
            node_encoding=setup.node_encoding,
            branching=setup.branching,
            window=source.window,
            reader=f"{self._counter.name} {self._counter.revision.hex()}",
            precision=setup.precision,
        )

    @property
    def card(self) -> SourceCard:
        """What makes the vectors."""
        return self._card

    @property
    def omissions(self) -> Omissions:
        """What could not be encoded so far."""
        return self._omissions

    def query_vectors(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """Float32 ``[n, D]``, unit length; a row of NaN for a query that is longer than the window."""
        ids = self._query_tokenizer.encode([query_text(query) for query in queries])
        window = self._query_tokenizer.window
        fits = [place for place, sequence in enumerate(ids) if len(sequence) <= window]
        for place in set(range(len(ids))) - set(fits):
            self._omissions.queries[queries[place]] = f"{len(ids[place])} tokens are over the window of {window}"
        fits.sort(key=lambda place: len(ids[place]))
        vectors = np.full((len(ids), self._dimension()), np.nan, np.float32)
        for start in range(0, len(fits), _QUERIES):
            chosen = fits[start : start + _QUERIES]
            vectors[chosen] = self._run(self._query, pad([ids[place] for place in chosen], _widths(window)))
        return vectors

    def node_vectors(self, items: Sequence[Item]) -> list[EncodedItem | None]:
        """The nodes of each item. Whoever calls gives items of about one length together, so that little is padding."""
        bare = [msgspec.structs.replace(item, tree=None) for item in items]
        rows, plan = plan_request(
            bare,
            tokenizer=self._node_tokenizer,
            counter=self._counter,
            revision=_REVISION,
            limits=_LIMITS,
            branching=self._setup.branching,
            node_encoding=self._setup.node_encoding,
        )
        inputs = (rows.input_ids, rows.segment_ids, rows.position_ids, rows.slot_ids)
        step = max(1, _TOKENS[self._device.type] // rows.input_ids.shape[1])
        parts = [
            self._run(self._node, [one[at : at + step] for one in inputs]) for at in range(0, len(rows.input_ids), step)
        ]
        self._note_cuts(bare, plan)
        return [
            EncodedItem(tree.fragments, tree.hierarchy, tree.vectors, tree.tokens)
            for tree in plan.trees(bare, np.concatenate(parts), revision=_REVISION)
        ]

    def _note_cuts(self, items: Sequence[Item], plan: RequestPlan) -> None:
        for item, one in zip(items, plan.items, strict=True):
            nodes = one.parts[:, 0]
            cut = int((np.bincount(nodes[nodes >= 0], minlength=1) > 1).sum())
            if cut:
                self._omissions.cut[item.id] = cut

    def _dimension(self) -> int:
        config: Any = self._query.backbone.config
        return int(config.hidden_size)

    def _run(self, graph: nn.Module, inputs: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        kind = self._device.type
        half = torch.autocast(kind, torch.bfloat16) if self._setup.precision == "bf16" else nullcontext()
        with torch.inference_mode(), half:
            tensors = [torch.from_numpy(np.ascontiguousarray(one)).to(self._device) for one in inputs]
            output: npt.NDArray[np.float32] = graph(*tensors).float().cpu().numpy()
        return output


def _widths(window: int) -> tuple[int, ...]:
    """Widths of padded queries: doublings from 16, the last one the window."""
    widths = [16]
    while widths[-1] < window:
        widths.append(min(window, widths[-1] * 2))
    return tuple(widths)


def _graphs(source: Source, adapter: Path | None, device: torch.device) -> tuple[QueryGraph, NodeGraph]:
    base = load_backbone(str(source.path))
    query = QueryGraph(base, source.pooling)
    if adapter is not None:
        base = load_backbone(str(source.path))
        base = merge_adapter(base, adapter, source.pooling, vocabulary_of(base))
    node = NodeGraph(base, source.pooling)
    return query.eval().to(device), node.eval().to(device)
