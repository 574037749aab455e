"""The chain's links: each makes the same queries and items into vectors and decisions, in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from canopy_backend.fragments import fragment
from canopy_backend.items import Item
from canopy_backend.manifest import EncoderManifest, Precision
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.tokenization import EncoderTokenizer
from canopy_backend.tree import decode_tree
from canopy_backend.triton.artefacts import NODE_ENCODER, QUERY_ENCODER, VISION_ENCODER, load_pair, load_vision
from canopy_backend.triton.encoder import GRAPH_FILE
from canopy_client import CanopyClient
from canopy_export.parity import Outcome, compare, run_endpoint
from canopy_export.qwen3vl.adapter import merge_language_adapter, put_language_adapter
from canopy_export.qwen3vl.build import load_model
from canopy_export.qwen3vl.graphs import LanguageGraph, VisionGraph, to_precision
from canopy_export.qwen3vl.onnx_files import load_file, run_torch
from canopy_export.qwen3vl.parity import PixelEncoders, ServedPixelEncoders, run_pixels

#: Smallest cosine between a vector of a link and that of torch in float32.
MIN_COSINE: Final[dict[Precision, float]] = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999}
#: Least share of fragments that a link keeps or drops as torch does, and of decisions that are equal or ties.
AGREEMENT: Final = 0.995
#: Verdict on a link with too few equal fragments, whose decisions are equal or ties all the same.
TIED: Final = "agreement MISSED"


@dataclass(frozen=True)
class Work:
    """What every link gets.

    Attributes:
        queries: The queries.
        items: The items, without trees.
    """

    queries: Sequence[str]
    items: Sequence[Item]


@dataclass(frozen=True)
class Link:
    """How one link compares with the first one, which is torch in float32 with the adapter switched on.

    Attributes:
        precision: Its arithmetic.
        name: What runs there.
        cosine: Smallest cosine of a query's or a node's vector.
        decisions: Pairs of a query and an item.
        equal: Pairs of which exactly the same fragments are kept.
        tied: The others among them where float32 compared two scores that rounding cannot tell apart.
        fragments: Fragments that were kept or dropped, of all pairs.
        same: Those that both keep or both drop.
    """

    precision: Precision
    name: str
    cosine: float
    decisions: int
    equal: int
    tied: int
    fragments: int
    same: int

    @property
    def agreement(self) -> float:
        """Share of fragments that are kept or dropped as torch does."""
        return self.same / self.fragments

    @property
    def verdict(self) -> str:
        """Which limits are kept: all of them, all but the agreement of fragments for ties' sake, or not."""
        if not (self.cosine >= MIN_COSINE[self.precision] and self.equal + self.tied >= AGREEMENT * self.decisions):
            return "MISSED"
        return "kept" if self.agreement >= AGREEMENT else TIED


def link(name: str, precision: Precision, reference: Outcome, actual: Outcome, work: Work) -> Link:
    """Compare an outcome with the first link's."""
    parity = compare(reference, actual, precision)
    same, fragments = agreement(reference, actual, [len(fragment(item)) for item in work.items])
    return Link(precision, name, parity.cosine, parity.decisions, parity.equal, parity.tied, fragments, same)


def agreement(reference: Outcome, actual: Outcome, sizes: Sequence[int]) -> tuple[int, int]:
    """Fragments that both keep or both drop, and all fragments; ``sizes`` are those of the items."""
    same = total = 0
    for (query, item), runs in reference.kept.items():
        left, right = _mask(runs, sizes[item]), _mask(actual.kept[query, item], sizes[item])
        same += int((left == right).sum())
        total += sizes[item]
    return same, total


def _mask(runs: Sequence[tuple[int, int]], size: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(size, np.bool_)
    for first, last in runs:
        mask[first:last] = True
    return mask


class Torch:
    """The model in torch, its node encoder with the adapter and its query encoder without.

    Args:
        model: Model folder.
        adapter: Adapter folder, or none.
        repository: An export of them, for its tokenizers.
    """

    def __init__(self, model: Path, adapter: Path | None, repository: Path) -> None:
        self._model, self._adapter = model, adapter
        query, node = load_pair(repository)
        self._tokenizers: tuple[EncoderTokenizer, EncoderTokenizer] = (node.tokenizer, query.tokenizer)
        self._settings: VisionSettings = load_vision(repository, node.manifest)

    def run(self, work: Work, *, merged: bool, precision: Precision = "fp32") -> Outcome:
        """Encode and refine.

        Args:
            work: The work.
            merged: The adapter merged into the weights, or switched on beside them.
            precision: Type of weights and products.
        """
        base, tuned = load_model(self._model), load_model(self._model)
        if self._adapter is not None and merged:
            merge_language_adapter(tuned, self._adapter, self._settings)
        elif self._adapter is not None:
            put_language_adapter(tuned, self._adapter)
        vision = VisionGraph(base.visual, self._settings).eval()
        node, query = (LanguageGraph(one.language_model).eval() for one in (tuned, base))
        for part in (base.visual, tuned.language_model, base.language_model):
            to_precision(part, precision)
        encoders = PixelEncoders(_of(vision), _of(node), _of(query), *self._tokenizers, self._settings)
        return run_pixels(encoders, work.queries, work.items)


def _of(graph: Any) -> Callable[[Any], list[Any]]:
    return lambda inputs: run_torch(graph, inputs)


def run_files(repository: Path, work: Work, *, alone: bool = False) -> Outcome:
    """The graphs of a repository on the CPU, without a server.

    Args:
        repository: The repository.
        work: The work.
        alone: Each sequence in a call of its own, padded, instead of packed with others.
    """
    query, node = load_pair(repository)
    precision = node.manifest.precision
    files = [
        load_file(repository / name / "1" / GRAPH_FILE, precision)
        for name in (VISION_ENCODER, NODE_ENCODER, QUERY_ENCODER)
    ]
    settings = load_vision(repository, node.manifest)
    encoders = ServedPixelEncoders(*files, node.tokenizer, query.tokenizer, settings, alone=alone)
    return run_pixels(encoders, work.queries, work.items)


def run_together(client: CanopyClient, repository: Path, work: Work) -> Outcome:
    """The endpoint, with as many items in a request as it takes: trees from ``index``, decisions by them."""
    return run_endpoint(client, repository, work.queries, work.items)


def run_apart(client: CanopyClient, repository: Path, work: Work) -> Outcome:
    """The endpoint with one query or item a request; decisions on items that bring no tree."""
    revision = EncoderManifest.load(repository / NODE_ENCODER).revision
    nodes, kept = [], {}
    for place, item in enumerate(work.items):
        nodes.append(decode_tree(client.index([item])[0].tree, item=item, revision=revision).vectors)
        for number, query in enumerate(work.queries):
            (evidence,) = client.compress(query, [item])
            kept[number, place] = tuple((region.first, region.last) for region in evidence.regions)
    vectors = np.concatenate([client.embed_query([query]) for query in work.queries])
    return Outcome(vectors, nodes, kept)
