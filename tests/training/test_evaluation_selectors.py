from __future__ import annotations

import numpy as np
import pytest
from evaluation_toys import WORKED, asked, scored
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.hierarchy import balanced
from canopy_training.evaluation import selectors
from canopy_training.evaluation.selectors import FIXED, SWEPT
from canopy_training.evaluation.sweeps import recall_at_tokens, run_sweep, run_sweeps, tokens_at_recall

# Leaves of WORKED by score: b1 .90, a1 .79, b2 .20, a2 .10, which are fragments 2, 0, 3, 1.
ITEM = scored(WORKED, 4, [2, 3])
# Three leaves: [0,2) and [2,3); the leaf at depth one stands before its cousins. Leaf scores .3, .6, .5.
UNEVEN = scored([0.4, 0.45, 0.5, 0.3, 0.6], 3, [0], item_id="u")


def kept(masks: list[np.ndarray]) -> list[list[list[int]]]:
    return [[np.flatnonzero(row).tolist() for row in mask] for mask in masks]


def test_leaf_scores_stand_in_the_order_of_fragments() -> None:
    assert selectors.leaf_scores(UNEVEN).tolist() == pytest.approx([0.3, 0.6, 0.5])


def test_the_best_leaves_of_each_item() -> None:
    assert kept(selectors.top_leaves([ITEM, UNEVEN], (1, 2, 1e9))) == [
        [[2], [0, 2], [0, 1, 2, 3]],
        [[1], [1, 2], [0, 1, 2]],
    ]


def test_equal_leaves_are_taken_from_the_front() -> None:
    assert kept(selectors.top_leaves([scored([0.5, 0.5, 0.5], 2)], (1,))) == [[[0]]]


def test_a_share_is_rounded_up_and_a_percentile_down() -> None:
    assert kept(selectors.leaf_share([UNEVEN], (0.05, 0.34, 1.0))) == [[[1], [1, 2], [0, 1, 2]]]
    assert kept(selectors.leaf_percentile([UNEVEN], (0.05, 0.34, 0.67, 1.0))) == [[[1], [1], [1, 2], [0, 1, 2]]]


def test_a_share_that_is_whole_on_paper_is_not_rounded() -> None:
    item = scored(np.linspace(0, 1, 39).tolist(), 20)
    assert selectors.leaf_share([item], (0.55,))[0].sum() == 11
    assert selectors.leaf_percentile([item], (0.55, 0.15))[0].sum(axis=1).tolist() == [11, 3]


def test_a_threshold_takes_equal_scores_and_can_drop_an_item() -> None:
    assert kept(selectors.leaf_threshold([ITEM, UNEVEN], (0.7, 0.6, -1.0))) == [
        [[0, 2], [0, 2], [0, 1, 2, 3]],
        [[], [1], [0, 1, 2]],
    ]


def test_the_best_leaves_of_a_question_come_from_any_item() -> None:
    assert kept(selectors.top_of_question([ITEM, UNEVEN], (1, 3, 4, 1e9))) == [
        [[2], [0, 2], [0, 2], [0, 1, 2, 3]],
        [[], [1], [1, 2], [0, 1, 2]],
    ]


def test_each_item_keeps_its_best_leaf_when_asked() -> None:
    select = selectors.each_item(selectors.top_of_question)
    assert kept(select([ITEM, UNEVEN], (1, 1e9))) == [[[2], [0, 1, 2, 3]], [[1], [0, 1, 2]]]


def test_selectors_without_a_knob() -> None:
    assert kept(selectors.best_leaf([ITEM], (0,))) == [[[2]]]
    assert kept(selectors.best_node([ITEM], (0,))) == [[[2]]]
    assert kept(selectors.best_node([scored([0.5, 0.8, 0.7, 0.8, 0.1, 0.3, 0.2], 4)], (0,))) == [[[0, 1]]]
    assert kept(selectors.canopy([ITEM], (0,))) == [[[0, 1, 2]]]
    assert kept(selectors.whole([ITEM], (0,))) == [[[0, 1, 2, 3]]]


def test_tokens_count_the_prefix_of_shown_items_and_recall_counts_splittable_ones() -> None:
    single = scored([0.95], 1, [0], item_id="s")
    sweep = run_sweep([asked(ITEM, single), asked(single)], selectors.top_of_question, (1, 2, 1e9))
    assert sweep.tokens.tolist() == [[13, 26, 56], [13, 13, 13]]
    assert sweep.recall.tolist() == [[0, 0.5, 1], [0, 0, 0]]
    tokens, recalls = sweep.points()
    assert tokens.tolist() == [13, 19.5, 34.5]
    assert recalls.tolist() == [0, 0.5, 1]


def test_interpolation_between_settings() -> None:
    tokens, recalls = np.array([10.0, 20.0, 40.0, 80.0]), np.array([0.5, 0.7, 0.7, 1.0])
    assert tokens_at_recall(tokens, recalls, 0.6) == pytest.approx(15)
    assert tokens_at_recall(tokens, recalls, 0.7) == pytest.approx(20)  # the cheapest setting that has it
    assert tokens_at_recall(tokens, recalls, 0.85) == pytest.approx(60)
    assert tokens_at_recall(tokens, recalls, 0.1) == pytest.approx(10)
    assert np.isnan(tokens_at_recall(tokens[:2], recalls[:2], 0.9))
    assert recall_at_tokens(tokens, recalls, 15) == pytest.approx(0.6)
    assert recall_at_tokens(tokens, recalls, 60) == pytest.approx(0.85)
    assert recall_at_tokens(tokens, recalls, 900) == pytest.approx(1)
    assert np.isnan(recall_at_tokens(tokens, recalls, 9))


def test_interpolation_of_many_curves_at_once() -> None:
    tokens, recalls = np.array([[10.0, 20.0], [0.0, 100.0]]), np.array([[0.0, 1.0], [0.0, 0.5]])
    assert tokens_at_recall(tokens, recalls, np.array([0.5, 0.25])).tolist() == [15, 50]
    assert recall_at_tokens(tokens, recalls, np.array([15.0, 50.0])).tolist() == [0.5, 0.25]


def test_the_rule_saves_nothing_against_itself_and_little_is_known_of_one_point() -> None:
    questions = [asked(ITEM, UNEVEN, place=place) for place in range(4)]
    every = [("all", np.ones(4, np.bool_)), ("half", np.array([True, True, False, False]))]
    found = {(one.scope, one.selector): one for one in run_sweeps({"toy": questions}, every, resamples=20)}
    assert len(found) == 2 * (len(FIXED) + len(SWEPT))
    rule, best = found["all", "canopy"], found["all", "best_leaf"]
    assert (rule.saved.value, rule.saved.low, rule.saved.high) == (0, 0, 0)
    # The rule keeps fragments 0-2 of the one item and 1, 2 of the other: one of three gold leaves.
    assert rule.tokens == [56]
    assert rule.recalls == pytest.approx([1 / 3])
    assert best.recalls == pytest.approx([1 / 3])
    assert best.tokens_at_equal_recall.value == pytest.approx(26)
    assert best.saved.value == pytest.approx(-30)


def test_a_point_that_falls_short_of_the_rule_has_no_tokens_at_its_recall() -> None:
    wide = scored([0.5, 0.6, 0.4, 0.5, 0.55, 0.1, 0.2], 4, [0, 1])  # the rule keeps leaves 0 and 1
    every = [("all", np.ones(1, np.bool_))]
    found = {one.selector: one for one in run_sweeps({"toy": [asked(wide)]}, every, resamples=5)}
    assert found["canopy"].recalls == [1]
    assert found["best_leaf"].tokens_at_equal_recall.value is None
    assert found["whole"].saved.value == 20
    assert found["whole"].recall_at_equal_tokens.value is None


@st.composite
def questions(draw: st.DrawFn):
    items = []
    for place in range(draw(st.integers(1, 3))):
        n_fragments = draw(st.integers(1, 6))
        size = balanced(n_fragments).size
        scores = draw(st.lists(st.floats(-1, 1, width=32), min_size=size, max_size=size))
        gold = draw(st.none() | st.sets(st.integers(0, n_fragments - 1), min_size=1))
        tokens = draw(st.lists(st.integers(0, 30), min_size=n_fragments + 1, max_size=n_fragments + 1))
        items.append(scored(scores, n_fragments, gold and sorted(gold), tokens=tokens, item_id=str(place)))
    return asked(*items)


@given(questions())
@pytest.mark.parametrize("name", list(SWEPT))
def test_a_milder_setting_never_keeps_less_and_the_mildest_keeps_everything(name: str, question) -> None:
    selector, knobs = SWEPT[name]
    for item, mask in zip(question.items, selector(question.items, knobs), strict=True):
        assert mask.shape == (len(knobs), item.hierarchy.n_fragments)
        assert (mask[:-1] <= mask[1:]).all()
        assert mask[-1].all()
    sweep = run_sweep([question], selector, knobs)
    assert (np.diff(sweep.tokens) >= 0).all()
    assert (np.diff(sweep.recall) >= 0).all()
    assert sweep.tokens[0, -1] == sum(int(item.tokens.sum()) for item in question.items)
    assert sweep.recall[0, -1] == sweep.counted[0]
