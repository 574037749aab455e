"""Parts without a server: packing, and refinement beside a bare matrix-vector product."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from benchmarks import workload
from benchmarks.encoder import Repository, inputs_of
from benchmarks.timing import best_ms, median_ms
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Item
from canopy_backend.refinement import refine, score, score_many
from canopy_backend.triton.encoder import calls
from canopy_export.configs import CHUNK_TOKENS


class Padding(msgspec.Struct, frozen=True):
    """Tokens of cold requests of ten items.

    Attributes:
        real: Tokens of the texts.
        computed: Tokens that go through the graph, padding included.
    """

    real: int
    computed: int


class Refining(msgspec.Struct, frozen=True):
    """Times of one item's refinement, in microseconds.

    Attributes:
        fragments: Fragments of the item.
        branching: Most children of a node.
        depth: Levels below the root.
        refine_us: Scores and walk.
        walk_us: The walk alone.
        product_us: numpy's matrix-vector product of the same vectors in float32, the fastest of all calls.
        half_us: The same in float16, which is how they are stored.
    """

    fragments: int
    branching: int
    depth: int
    refine_us: float
    walk_us: float
    product_us: float
    half_us: float


def padding(repository: Repository, items: Sequence[Item]) -> Padding:
    """Count the tokens of ``items`` in cold requests of ten, as the embedded profile encodes them."""
    real = computed = 0
    for start in range(0, len(items), workload.PASSAGES):
        rows, tokens = repository.planned(items[start : start + workload.PASSAGES])
        real += tokens
        inputs = inputs_of(rows)
        computed += sum(len(chosen) * cut for chosen, cut in calls(inputs, tuple(inputs), CHUNK_TOKENS))
    return Padding(real, computed)


def refining(fragments: int, branching: int = 2, repeats: int = 200, dimension: int = 384) -> Refining:
    """Time refinement of one item of random unit vectors."""
    hierarchy = balanced(fragments, branching)
    generator = np.random.default_rng(fragments)
    vectors = generator.standard_normal((hierarchy.size, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    half = vectors.astype(np.float16)
    query = vectors[-1]
    scores = score(half, query)
    return Refining(
        fragments=fragments,
        branching=branching,
        depth=int(hierarchy.depth.max()),
        refine_us=1000 * median_ms(lambda: refine(hierarchy, score_many([half], query, [hierarchy.parent])), repeats),
        walk_us=1000 * median_ms(lambda: refine(hierarchy, scores), repeats),
        product_us=1000 * best_ms(lambda: vectors @ query, repeats),
        half_us=1000 * best_ms(lambda: half @ query.astype(np.float16), max(3, repeats // 10)),
    )
