"""Ratios, and the page that is made from results."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.counts import Count, since
from benchmarks.duels import LIBRARY, OWN, OWN_NEW, SERVED, SESSION, TRITON
from benchmarks.figures import draw
from benchmarks.flood import Flood
from benchmarks.growth import Drift
from benchmarks.inprocess import Padding, Refining
from benchmarks.load import Figures, median_of
from benchmarks.memory import Samples
from benchmarks.operating import full_at
from benchmarks.page import page
from benchmarks.peers.contenders import CONTENDERS, LANGCHAIN, LLAMAINDEX, STATIC, arm_of
from benchmarks.ratios import all_ratios, hit, median, paired
from benchmarks.results import Curve, Merging, Ratio, Results, Setup, Side, Size, Soak


def setup() -> Setup:
    return Setup(
        machine="a machine, 2 cores",
        cores=2,
        triton="2.51.0",
        versions={"torch": "2.13.0"},
        load="perf_analyzer",
        quick=False,
        threads=2,
        questions=100,
        items=500,
        sources="examples",
        tree_kb=159.0,
        settings={"hierarchy": "1 instance"},
        revision="00112233aabbccdd",
        precision="bf16",
    )


def results() -> Results:
    curve = [Figures(1, 200.0, 4.0, 6.0), Figures(2, 390.0, 4.5, 7.0), Figures(4, 400.0, 9.0, 12.0)]
    sizes = [
        Size(1, 25, 0, [10.0], [2.0], [12.0]),
        Size(2, 75, 1, [21.0], [2.5], [25.0]),
        Size(4, 175, 2, [40.0], [3.0], [44.0]),
    ]
    samples = Samples([0.0, 1.0], [0, 100], {"tritonserver": [100.0, 101.0], "hierarchy": [50.0, 50.0]}, [10.0, 10.0])
    return Results(
        setup=setup(),
        warm={
            OWN: Side("ours", [2.0, 2.0, 4.0], [400.0, 410.0, 420.0], 300.0, 0.75),
            OWN_NEW: Side("ours, new", [6.0, 6.0, 6.0]),
            LANGCHAIN: Side("LangChain", [220.0, 210.0, 600.0], [5.0, 5.0, 5.0], 500.0, 0.8),
            LLAMAINDEX: Side("LlamaIndex", [300.0, 190.0, 400.0], [4.0, 6.0, 4.0], 900.0, 0.9),
            STATIC: Side("model2vec", [5.0, 5.0, 5.0], [200.0], 510.0, 0.6),
        },
        cold={OWN: Side("cold", [500.0] * 3), LANGCHAIN: Side("LangChain", [200.0] * 3)},
        contextual={OWN: Side("contextual", [150.0] * 3), LANGCHAIN: Side("LangChain", [200.0] * 3)},
        throughput={TRITON: [6000.0] * 3, SERVED: [6100.0] * 3, SESSION: [6200.0] * 3, LIBRARY: [4500.0] * 3},
        curves=[Curve("compress, with trees", 10, curve)],
        by_items=sizes,
        by_fragments=sizes,
        refining=[Refining(1000, 2, 10, 1800.0, 50.0, 45.0, 3300.0)],
        padding={"separate": Padding(950, 1000)},
        merging=[Merging("new queries", 8, {"query_encoder": Count(32, 10, 32, 1.0, 2.0)})],
        indexing=[5000.0],
        indexing_alone=[6000.0],
        soak=Soak(100, 50.0, samples, {"all processes": Drift(150.0, 151.0, 0.1), "/dev/shm": Drift(10.0, 10.0, 0.0)}),
        flood=Flood(3000, 3.5, {"OK": 600, "UNAVAILABLE": 2400}, {"OK": 2.5, "UNAVAILABLE": 3.2}, 1.9),
        kept_whole=1000.0,
        gold=42,
        not_run={"a peer": "not installed"},
    )


def find(ratios: list[Ratio], start: str) -> Ratio:
    return next(one for one in ratios if one.what.startswith(start))


def test_rounds_are_paired_and_the_median_counts() -> None:
    assert paired([4.0, 9.0, 1.0], [2.0, 3.0, 0.0]) == [2.0, 3.0]
    ratios = all_ratios(results())
    first = find(ratios, "p50 of LangChain")
    assert first.values == [110.0, 95.0, 100.0]  # the faster peer of each round, over ours of the same round
    assert median(first) == 100.0
    assert hit(first)
    throughput = find(ratios, "requests/s over")
    assert throughput.values == pytest.approx([80.0, 410 / 6, 84.0])
    assert not hit(throughput)


def test_the_page_says_what_was_measured_in_a_run_of_its_own() -> None:
    assert "--growth" not in page(results(), [])
    again = results()
    again.grown_again = True
    assert "Growth and refinement were measured after that" in page(again, [])


def test_aims_have_a_direction() -> None:
    ratios = all_ratios(results())
    assert not hit(find(ratios, "p50 of ten cold items, separate"))  # 2.5, at most 2
    assert hit(find(ratios, "p50 of ten cold items, contextual"))  # 0.75, at most 1
    assert hit(find(ratios, "real over computed tokens"))
    assert not hit(find(ratios, "scores and walk"))
    assert hit(Ratio("equal", [2.1], 2.1, False))
    assert hit(Ratio("equal", [0.9], 0.9, True))


def test_what_was_not_measured_has_no_ratio() -> None:
    assert all_ratios(Results(setup())) == []
    whole = results()
    del whole.throughput[LIBRARY]
    assert not any("sentence-transformers" in one.what for one in all_ratios(whole))


def test_the_page_says_hit_or_missed_and_what_did_not_run() -> None:
    text = page(results(), [])
    assert text.startswith("# Performance\n")
    assert text.index("For an operator") < text.index("## Ratios")
    assert "| hit |" in text
    assert "**missed**" in text
    assert "- a peer: not installed." in text
    assert "| 390.0 | 3900 | 4.5 | 7.0 | 2 | 4.0 |" in text  # where throughput is full, with the latency there
    assert "300 | 75.0 %" in text
    assert "| UNAVAILABLE | 2400 | 3.2 |" in text
    assert ".png" not in text
    assert max(map(len, (line for line in text.splitlines() if line.startswith("#")))) < 80


def test_the_page_can_be_made_again_from_stored_results(tmp_path: Path) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(results()), type=Results)
    names = draw(stored, tmp_path)
    assert names == ["growth.png", "load.png", "memory.png"]
    assert page(stored, names) == page(results(), names)
    assert page(stored, names).count("](performance/") == 3


def test_full_is_where_more_requests_in_flight_only_wait() -> None:
    rows = [Figures(1, 50.0, 1.0, 1.0), Figures(2, 96.0, 1.0, 1.0), Figures(4, 100.0, 2.0, 2.0)]
    assert full_at(Curve("a call", 1, rows)) == 1
    assert full_at(Curve("a call", 1, rows[:1])) == 0


def test_the_median_run_is_taken_figure_by_figure() -> None:
    rows = [Figures(4, 10.0, 3.0, 9.0), Figures(4, 30.0, 1.0, 7.0), Figures(4, 20.0, 2.0, 8.0)]
    assert median_of(rows) == Figures(4, 20.0, 2.0, 8.0)


def test_counts_are_what_was_added() -> None:
    before = {"a": Count(10, 5, 8, 1.0, 2.0), "b": Count(1, 1, 1, 1.0, 1.0)}
    after = {"a": Count(16, 7, 14, 1.5, 4.0), "b": Count(1, 1, 1, 1.0, 1.0), "c": Count(2, 1, 2, 0.0, 0.0)}
    added = since(before, after)
    assert set(added) == {"a", "c"}
    assert added["a"] == Count(6, 2, 6, 0.5, 2.0)


def test_every_contender_runs_an_arm_of_the_comparison() -> None:
    for one in CONTENDERS:
        if one.arm is None:
            with pytest.raises(ValueError, match="keeps nothing"):
                arm_of(one)
        else:
            assert one.knob in (*arm_of(one).knobs, arm_of(one).own)
