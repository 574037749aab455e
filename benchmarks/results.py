"""All figures of one run. The page and the figures are made from these alone."""

from __future__ import annotations

import msgspec

from benchmarks.counts import Count
from benchmarks.flood import Flood
from benchmarks.growth import Drift
from benchmarks.inprocess import Padding, Refining
from benchmarks.load import Figures
from benchmarks.memory import Samples


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and on what.

    Attributes:
        machine: Processor, cores, memory.
        cores: Cores.
        triton: Triton's version.
        versions: Of the peers' packages.
        load: Which load generator.
        quick: Whether runs were short.
        threads: Threads of every peer's encoder.
        questions, items: Sizes of the workload.
        sources: Where it comes from.
        tree_kb: What the trees add to a request of ten passages, in kB.
        settings: What the server's model configurations say, by model and setting.
        revision: Revision of the node encoder.
        precision: Its arithmetic.
    """

    machine: str
    cores: int
    triton: str
    versions: dict[str, str]
    load: str
    quick: bool
    threads: int
    questions: int
    items: int
    sources: str
    tree_kb: float
    settings: dict[str, str]
    revision: str
    precision: str


class Side(msgspec.Struct):
    """One contender of the runs in turn; a value a round.

    Attributes:
        label: What tables call it.
        p50_ms: Median latency, one call at a time.
        per_s: Requests a second, four at a time; empty where it was not asked for.
        tokens: Reader's tokens that it keeps of a question's ten items; ``None`` where it keeps nothing.
        recall: Share of gold fragments that it keeps.
    """

    label: str
    p50_ms: list[float] = []
    per_s: list[float] = []
    tokens: float | None = None
    recall: float | None = None


class Curve(msgspec.Struct):
    """One call by the number of requests in flight, medians of three."""

    label: str
    items: int
    rows: list[Figures]


class Size(msgspec.Struct, frozen=True):
    """One size of a growing request; times have a value a round.

    Attributes:
        size: Items, or fragments of the one item.
        tokens: Encoder's tokens of all nodes.
        depth: Levels of the deepest tree below its root.
        cold_ms: Without trees; empty where it was not measured.
        tree_ms: With trees.
        index_ms: Of indexing.
    """

    size: int
    tokens: int
    depth: int
    cold_ms: list[float]
    tree_ms: list[float]
    index_ms: list[float]


class Merging(msgspec.Struct, frozen=True):
    """What the dynamic batcher did under one load."""

    label: str
    in_flight: int
    models: dict[str, Count]


class Soak(msgspec.Struct, frozen=True):
    """Many requests in a row, and the memory meanwhile."""

    requests: int
    per_s: float
    samples: Samples
    drifts: dict[str, Drift]


class Ratio(msgspec.Struct, frozen=True):
    """One ratio, a value a round.

    Attributes:
        what: What over what.
        values: One a round.
        aim: What its median should be.
        at_least: Whether it should be at least, or at most, that.
        note: What else to know.
    """

    what: str
    values: list[float]
    aim: float
    at_least: bool
    note: str = ""


class Results(msgspec.Struct):
    """A whole run.

    Attributes:
        setup: What was measured, and on what.
        warm, cold, contextual: Sides of the runs in turn, by name: items with trees, cold items, and cold items with
            the contextual encoding. Peers stand in each of them, measured again.
        throughput: Encoder tokens a second by name, one a round.
        curves: By requests in flight.
        by_items, by_fragments: Growth.
        refining: Refinement in process.
        padding: Real and computed tokens by node encoding.
        merging: Executions and inferences.
        indexing: Encoder tokens a second through ``index``, one a round.
        indexing_alone: The same of the node encoder's session in process, on the same items.
        soak: Memory over time.
        flood: Requests that were all sent at once.
        kept_whole: Reader's tokens of a question's ten items.
        gold: Gold fragments that recall counts.
        not_run: What was not run, and why.
        grown_again: Whether growth and refinement were measured in a run of their own.
    """

    setup: Setup
    warm: dict[str, Side] = {}
    cold: dict[str, Side] = {}
    contextual: dict[str, Side] = {}
    throughput: dict[str, list[float]] = {}
    curves: list[Curve] = []
    by_items: list[Size] = []
    by_fragments: list[Size] = []
    refining: list[Refining] = []
    padding: dict[str, Padding] = {}
    merging: list[Merging] = []
    indexing: list[float] = []
    indexing_alone: list[float] = []
    soak: Soak | None = None
    flood: Flood | None = None
    kept_whole: float = 0.0
    gold: int = 0
    not_run: dict[str, str] = {}
    grown_again: bool = False
