"""The ratios of a run, each with its aim; pure functions of the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.duels import LIBRARY, OWN, OWN_NEW, SERVED, SESSION, TRITON
from benchmarks.growth import worst_doubling
from benchmarks.peers.contenders import FILTERS, STATIC
from benchmarks.results import Ratio, Results, Side, Size


def median(ratio: Ratio) -> float:
    """The value that counts."""
    return float(np.median(ratio.values))


def hit(ratio: Ratio) -> bool:
    """Whether the aim is reached."""
    return median(ratio) >= ratio.aim if ratio.at_least else median(ratio) <= ratio.aim


def paired(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One ratio a round; rounds that one side lacks are left out."""
    return [one / other for one, other in zip(above, below, strict=False) if other > 0]


def all_ratios(results: Results) -> list[Ratio]:
    """Every ratio of which both sides were measured."""
    found = [
        *_warm(results),
        *_cold(results),
        *_encoders(results),
        *_refinement(results),
        Ratio("tokens/s of `index` over the node encoder alone, in process", _indexing(results), 0.85, True),
        *_linear(results),
        *_padding(results),
    ]
    return [ratio for ratio in found if ratio.values]


def fastest(sides: dict[str, Side]) -> list[float]:
    """In each round, the latency of the faster filter."""
    rows = [sides[name].p50_ms for name in FILTERS if name in sides]
    return [min(row) for row in zip(*rows, strict=False)]


def _warm(results: Results) -> list[Ratio]:
    sides = results.warm
    if not all(name in sides for name in (OWN, OWN_NEW)):
        return []
    rates = [sides[name].per_s for name in FILTERS if name in sides]
    best = [max(row) for row in zip(*rates, strict=False)]
    static = sides[STATIC].p50_ms if STATIC in sides else []
    filters = "LangChain or LlamaIndex, the faster"
    return [
        Ratio(
            f"p50 of {filters}, over ours: ten items with trees, one at a time",
            paired(fastest(sides), sides[OWN].p50_ms),
            100,
            True,
            "the query is in the server's cache, as in later rounds of a question",
        ),
        Ratio(
            "the same, every query new to the server",
            paired(fastest(sides), sides[OWN_NEW].p50_ms),
            100,
            True,
            "seen from the Python client",
        ),
        Ratio(
            f"requests/s over those of {filters}: ten items with trees, four at once",
            paired(sides[OWN].per_s, best),
            150,
            True,
        ),
        Ratio("p50 of model2vec in process, over ours through gRPC", paired(static, sides[OWN].p50_ms), 1, True),
    ]


def _cold(results: Results) -> list[Ratio]:
    found = []
    for label, sides, aim in (("separate", results.cold, 2.0), ("contextual", results.contextual, 1.0)):
        if OWN in sides:
            what = f"p50 of ten cold items, {label}, over the faster filter's"
            found.append(Ratio(what, paired(sides[OWN].p50_ms, fastest(sides)), aim, False))
    return found


def _encoders(results: Results) -> list[Ratio]:
    rates = results.throughput
    mine = rates.get(TRITON, [])
    others = (
        (SERVED, "the same session in process", 0.9),
        (SESSION, "the same ONNX file in ONNX Runtime in float32, in process", 0.9),
        (LIBRARY, "sentence-transformers", 1.5),
        ("infinity", "infinity-emb", 1.5),
    )
    return [
        Ratio(f"encoder tokens/s through Triton over {label}", paired(mine, rates.get(name, [])), aim, True)
        for name, label, aim in others
    ]


def _refinement(results: Results) -> list[Ratio]:
    rows = [one for one in results.refining if (one.fragments, one.branching) == (1000, 2)]
    what = "scores and walk of 1,000 fragments over numpy's matrix-vector product of the same vectors"
    return [
        Ratio(what, [one.refine_us / one.product_us for one in rows], 10, False, "product in float32"),
        Ratio(what, [one.refine_us / one.half_us for one in rows], 10, False, "product in float16, as they are stored"),
    ]


def _indexing(results: Results) -> list[float]:
    return paired(results.indexing, results.indexing_alone)


def _linear(results: Results) -> list[Ratio]:
    found = []
    for what, rows in (("items", results.by_items), ("tokens", results.by_fragments)):
        for label, column in (("with trees", _trees(rows)), ("cold", _without(rows)), ("index", _indexed(rows))):
            sizes, times = column if what == "items" else _by_tokens(rows, column)
            if len(sizes) > 1:
                note = "largest of all steps, each the median of its rounds"
                ratio = Ratio(f"time for twice the {what}, {label}", [worst_doubling(sizes, times)], 2.1, False, note)
                found.append(ratio)
    return found


Column = tuple[list[float], list[list[float]]]


def _trees(rows: Sequence[Size]) -> Column:
    return [float(one.size) for one in rows], [one.tree_ms for one in rows]


def _without(rows: Sequence[Size]) -> Column:
    some = [one for one in rows if one.cold_ms]
    return [float(one.size) for one in some], [one.cold_ms for one in some]


def _indexed(rows: Sequence[Size]) -> Column:
    return [float(one.size) for one in rows], [one.index_ms for one in rows]


def _by_tokens(rows: Sequence[Size], column: Column) -> Column:
    tokens = {float(one.size): float(one.tokens) for one in rows}
    return [tokens[size] for size in column[0]], column[1]


def _padding(results: Results) -> list[Ratio]:
    return [
        Ratio(f"real over computed tokens, cold requests of ten items, {label}", [one.real / one.computed], 0.9, True)
        for label, one in results.padding.items()
    ]
