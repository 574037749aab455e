from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest

from benchmarks.peers import report
from benchmarks.peers.arms import ARMS, PEERS
from benchmarks.peers.collect import ALL, GOLD, as_sweep, collect, own
from benchmarks.peers.compare import POOL, WHOLE, Draw, arm_results, frontier, own_results, scopes_of, stand
from benchmarks.peers.measures import Measured
from benchmarks.peers.process import WorkerFailed, worker
from benchmarks.peers.protocol import ArmReply, Asked, PeerReply, Reply
from canopy_backend.fragments import fragment
from canopy_backend.hierarchy import balanced
from canopy_backend.items import TextItem
from canopy_backend.tokenization import TokenCounter
from canopy_training.data import Gold, Question
from canopy_training.evaluation.scoring import ScoredItem, ScoredQuestion
from canopy_training.evaluation.selectors import canopy, whole
from canopy_training.evaluation.sweeps import run_sweep
from canopy_training.evaluation.vectors import SourceCard

FIRST = TextItem(id="a", title="A", text="Ant is up. Bee is in. Cat is on. Dog is by.")
SECOND = TextItem(id="b", title="B", text="Elk is to. Fox is at.")
# Of the first item the rule keeps its second half, of the second all.
SCORES = {"a": (0.5, 0.1, 0.6, 0.1, 0.1, 0.2, 0.2), "b": (0.5, 0.1, 0.1)}
DRAW = Draw(resamples=50, seed=1)


class Characters:
    def count(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([len(text) for text in texts], np.int32)


COUNTER = cast(TokenCounter, Characters())


class Sentences:
    """Every peer at once: keeps the first n of a question's sentences at its n-th setting."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def ask(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        pieces = [fragment(TextItem(id="x", text=item["text"] or "")).spans.tolist() for item in asked["items"]]
        peers: dict[str, PeerReply] = {}
        for peer in PEERS:
            arms: dict[str, ArmReply] = {}
            for arm in (one for one in ARMS if one.peer == peer):
                arms[arm.name] = {"kept": {}, "refused": {}}
                for group, places in asked["groups"].items():
                    flat = [(at, one) for at, place in enumerate(places) for one in range(len(pieces[place]))]
                    arms[arm.name]["kept"][group] = [
                        [[one for item, one in flat[:count] if item == at] for at in range(len(places))]
                        for count in range(1, len(arm.knobs) + 1)
                    ]
                    arms[arm.name]["refused"][group] = [1] + [0] * (len(arm.knobs) - 1)
            peers[peer] = {"seconds": 0.5, "cut": 0, "pieces": pieces, "lost": [], "arms": arms}
        return {"place": asked["place"], "peers": peers}


def scored_item(item: TextItem, gold: Sequence[int] | None) -> ScoredItem:
    fragments = fragment(item)
    texts = [item.text[start:end] for start, end in fragments.spans.tolist()]
    tokens = np.array([*map(len, texts), len(item.title)], np.int32)
    mask = None if gold is None else np.isin(np.arange(len(fragments)), gold)
    scores = np.array(SCORES[item.id], np.float32)
    return ScoredItem(item.id, "text", fragments, balanced(len(fragments)), tokens, scores, gold is not None, mask)


def toy() -> tuple[list[Question], list[ScoredQuestion]]:
    """Three questions: gold in the second half of one item, gold in both items, no known gold at all."""
    golds = [({"a": [2]}, "one"), ({"a": [0], "b": [1]}, "two"), ({}, "two")]
    questions, scored = [], []
    for place, (gold, dataset) in enumerate(golds):
        items = (FIRST, SECOND)
        marks = tuple(Gold(item_id=name, answer="is") for name in gold) or (Gold(item_id="b"),)
        questions.append(
            Question(
                id=str(place),
                dataset=dataset,
                split="dev",
                question=f"Who {place}?",
                answers=(),
                items=items,
                gold=marks,
                meta={},
            )
        )
        shown = tuple(scored_item(item, gold.get(item.id)) for item in items)
        scored.append(ScoredQuestion(place, str(place), dataset, False, shown))
    return questions, scored


def test_the_rule_is_measured_as_in_the_evaluations_sweeps() -> None:
    _, scored = toy()
    for selector in (canopy, whole):
        mine, theirs = as_sweep((0,), own(scored, selector, ALL)), run_sweep(scored, selector, (0,))
        assert np.array_equal(mine.tokens, theirs.tokens)
        assert np.array_equal(mine.recall, theirs.recall)
        assert np.array_equal(mine.counted, theirs.counted)
    assert own(scored, canopy, ALL)[0].tokens.tolist() == [11 + 10 + 1 + 21 + 1]


def test_peers_get_all_items_and_the_gold_ones_apart() -> None:
    questions, scored = toy()
    peers = Sentences()
    found = collect(peers, scored, questions, COUNTER, timed=1)
    assert [asked["timed"] for asked in peers.asked] == [True, True, False]
    assert [asked["groups"] for asked in peers.asked] == [
        {ALL: [0, 1], GOLD: [0]},
        {ALL: [0, 1]},  # all its items are gold, so both are one
        {ALL: [0, 1]},  # no known gold
    ]
    assert [item["prefix"] for item in peers.asked[0]["items"]] == ["A", "B"]
    assert len(found.rows[ALL, "recomp"]) == 3
    assert len(found.rows[GOLD, "recomp"]) == 2
    assert found.efforts["recomp"].timed == 4
    assert found.efforts["recomp"].seconds == pytest.approx(1.5)
    assert found.efforts["recomp"].pieces == 3 * 6
    assert found.refused[ALL, "recomp"][0] == 3
    assert found.refused[ALL, "recomp"][1] == 0


def test_tokens_at_the_rules_recall_are_those_of_the_setting_that_reaches_it() -> None:
    questions, scored = toy()
    found = collect(Sentences(), scored, questions, COUNTER)
    results = {(one.mode, one.scope, one.arm): one for one in arm_results(found, {"toy": scored}, DRAW)}
    one = results[GOLD, "one", "recomp"]
    # The third sentence of the one gold item is its gold, so n = 3; the rule keeps two sentences: 11 tokens fewer.
    assert (one.knob, one.tokens_at_equal_recall.value, one.saved.value) == (3, 11 + 11 + 11 + 1, 12)
    # The rule's 22 tokens lie between n = 1 (12 tokens, no gold) and n = 3 (34, all of it); n = 2 is worth nothing.
    assert one.recall_at_equal_tokens.value == pytest.approx(10 / 22)
    assert (one.own_tokens, one.own_recall) == (23, 0)
    assert one.refused[0] == 2
    # On the second question the rule keeps one of two gold fragments, as the first sentence alone does.
    two = results[GOLD, "two", "recomp"]
    assert (two.knob, two.tokens_at_equal_recall.value) == (1, 12)
    assert two.saved.value == 12 - (22 + 22)


def test_a_peer_that_never_reaches_the_recall_has_no_tokens_at_it() -> None:
    rows = [Measured(np.array([5.0]), np.array([1.0]), 2, np.array([1.0]), 2)] * 3
    rule = [Measured(np.array([9.0]), np.array([2.0]), 2, np.array([2.0]), 2)] * 3
    (one,) = stand(as_sweep((1,), rows), [as_sweep((0,), rule)], DRAW)
    assert one.needed.value is None
    assert one.saved.value is None
    assert one.reached.value == 0.5


def test_settings_that_cost_more_for_no_more_recall_are_left_out() -> None:
    tokens, recalls = np.array([90.0, 10.0, 20.0, 30.0, 95.0]), np.array([1.0, 0.2, 0.2, 0.6, 1.0])
    assert frontier(tokens, recalls).tolist() == [1, 3, 0]


def test_a_knob_that_is_not_monotone_is_seen_at_its_best() -> None:
    # The strictest setting keeps everything, as a percentile that rounds down to nothing does.
    rows = [Measured(np.array([100.0, 10.0, 20.0]), np.array([2.0, 1.0, 2.0]), 2, np.zeros(3), 0)] * 4
    rule = [Measured(np.array([30.0]), np.array([2.0]), 2, np.zeros(1), 0)] * 4
    (one,) = stand(as_sweep((0.1, 0.5, 0.9), rows), [as_sweep((0,), rule)], DRAW)
    assert one.needed.value == 20
    assert (one.saved.value, one.saved.low, one.saved.high) == (-10, -10, -10)


def test_the_parts_of_a_mode() -> None:
    _, scored = toy()
    assert {name: mask.tolist() for name, mask in scopes_of(scored, ALL).items()} == {
        POOL: [True, True, True],
        "one": [True, False, False],
        "two": [False, True, True],
    }
    assert scopes_of(scored, GOLD)["two"].tolist() == [False, True]
    assert scopes_of(scored[:1], ALL).keys() == {POOL}


def test_file_page_and_figure_say_who_needs_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_ENOUGH", 1)
    questions, scored = toy()
    found = collect(Sentences(), scored, questions, COUNTER)
    comparison = report.Comparison(
        command="python -m benchmarks.peers.run",
        seed=1,
        resamples=50,
        threads=1,
        versions={"torch": "1"},
        files={"toy.jsonl": "00"},
        split="dev",
        questions=3,
        cards=[
            SourceCard(name="toy", model="m", revision="0", node_encoding="separate", branching=2, window=9, reader="r")
        ],
        own=own_results({"toy": scored}, DRAW),
        arms=arm_results(found, {"toy": scored}, DRAW),
        timings=[report.Timing(name="recomp", items=6, seconds=1.5, pieces=18)],
    )
    comparison.save(tmp_path)
    assert msgspec.json.decode((tmp_path / report.JSON_FILE).read_bytes(), type=report.Comparison) == comparison
    page = (tmp_path / report.PAGE_FILE).read_text(encoding="utf-8")
    # n 3: of 1 and 3 sentences, 12 and 34 tokens, the pool needs the latter for the rule's recall of 75 %.
    assert "| RECOMP-style, sentences | n 3 | 34 [" in page
    assert f"| {WHOLE} | 3 | 66 [66, 66] | 100.0 [100.0, 100.0] |" in page
    assert "- RECOMP-style, sentences: all (10 of 34), one (10 of 34), two (32 of 12)" in page
    assert "| recomp | 6 | 250.0 | 18 | 0 | 0 |" in page
    assert (tmp_path / report.FIGURE_FILE).stat().st_size > 10_000


def test_a_missing_environment_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="make peers"), worker(tmp_path / "python", tmp_path):
        pass


def test_a_worker_that_ends_is_an_error() -> None:
    # This environment has none of the peers, so the worker ends before it says hello.
    with pytest.raises(WorkerFailed, match="ended"), worker(Path(sys.executable), Path("nowhere"), deadline=60):
        pass
