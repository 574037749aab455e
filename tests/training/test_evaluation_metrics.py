from __future__ import annotations

import numpy as np
import pytest
from evaluation_toys import WORKED, asked, scored
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.hierarchy import balanced
from canopy_backend.refinement import refine
from canopy_training.evaluation.metrics import (
    COLUMNS,
    METRICS,
    Counts,
    count,
    count_item,
    fragments_of,
    level_scores,
    under,
)


def columns(item) -> dict[str, float]:
    return dict(zip(COLUMNS, count_item(item), strict=True))


def metrics(counts: Counts) -> dict[str, float]:
    over, below = counts.fractions()
    with np.errstate(invalid="ignore"):
        return dict(zip(METRICS, (over.sum(axis=0) / below.sum(axis=0)).tolist(), strict=True))


def test_the_worked_example_keeps_three_of_four_leaves() -> None:
    found = columns(scored(WORKED, 4, [0, 1, 2]))
    # root splits, A is kept with both leaves, B keeps one of two.
    assert (found["decisions"], found["kept"], found["split"], found["dropped"]) == (3, 1, 2, 0)
    assert (found["tokens_kept"], found["tokens_whole"]) == (33, 43)
    assert (found["fragments_kept"], found["gold"], found["gold_left"], found["gold_lost"]) == (3, 3, 3, 0)
    assert (found["pruned"], found["whole"], found["whole_gold"]) == (1, 0, 0)
    # V: root (both children enter), A (gold throughout: above both children), B (b1 enters, b2 does not).
    assert (found["instances"], found["decided"]) == (3, 3)


def test_equality_enters_and_a_fully_gold_node_needs_a_strict_order() -> None:
    assert columns(scored([0.5, 0.5, 0.4], 2, [0]))["decided"] == 1
    assert columns(scored([0.5, 0.6, 0.5], 2, [0]))["decided"] == 0  # the other child ties with its parent
    assert columns(scored([0.5, 0.4, 0.4], 2, [0, 1]))["decided"] == 1
    assert columns(scored([0.5, 0.5, 0.4], 2, [0, 1]))["decided"] == 0


def test_a_lost_gold_leaf_is_told_by_the_depth_at_which_its_side_failed() -> None:
    # Root 0.5; left 0.6 enters, right 0.499 does not, though it holds gold leaf 2; left splits to leaf 0.
    found = columns(scored([0.5, 0.6, 0.499, 0.7, 0.1, 0.9, 0.9], 4, [2]))
    assert (found["gold_lost"], found["gold_lost_1"], found["gold_lost_2"]) == (1, 1, 0)
    assert (found["gold_lost_beside_gold"], found["gold_lost_by_a_hair"]) == (0, 1)


def test_gold_lost_beside_gold_is_told_apart() -> None:
    found = columns(scored([0.5, 0.6, 0.4, 0.7, 0.1, 0.9, 0.9], 4, [0, 1, 2]))
    # Leaf 2 goes with the right half at depth 1, leaf 1 at depth 2, each beside gold that stays.
    assert (found["gold_lost"], found["gold_lost_1"], found["gold_lost_2"]) == (2, 1, 1)
    assert (found["gold_lost_beside_gold"], found["gold_lost_by_a_hair"]) == (2, 0)


@pytest.mark.parametrize(("child", "hair"), [(0.499, 1), (0.49, 0), (0.5, 0), (0.6, 0)])
def test_an_item_kept_whole_by_a_hair(child: float, hair: int) -> None:
    assert columns(scored([0.5, child, 0.2], 2))["whole_by_a_hair"] == hair


def test_ties_are_counted_once_an_inner_node_and_only_between_siblings() -> None:
    tied = columns(scored([0.5, 0.4, 0.4, 0.4, 0.3, 0.2, 0.2], 4))
    assert tied["tied"] == 2
    apart = columns(scored([0.5, 0.4, 0.3, 0.2, 0.1, 0.21, 0.2], 4))  # 0.2 twice, under two parents
    assert apart["tied"] == 0


def test_ties_of_three_siblings_are_one() -> None:
    assert columns(scored([0.5, 0.4, 0.4, 0.4], 3, branching=3))["tied"] == 1


def test_an_item_of_one_fragment_counts_for_tokens_and_nothing_else() -> None:
    found = columns(scored([0.5], 1, [0], modality="image"))
    assert {name for name, value in found.items() if value} == {
        "fragments",
        "fragments_kept",
        "tokens_whole",
        "tokens_kept",
        "gold_any",
        "gold_left_any",
    }


def test_recall_is_a_mean_over_questions_that_have_splittable_gold() -> None:
    lost = scored([0.5, 0.6, 0.4], 2, [1])
    both = scored([0.5, 0.4, 0.4], 2, [0, 1], item_id="j")
    found = metrics(
        count([asked(lost, place=0), asked(both, scored([0.1], 1, [0], item_id="k"), place=1), asked(place=2)])
    )
    assert found["recall"] == 0.5
    assert found["gold_lost_to_sibling"] == pytest.approx(1 / 3)
    # The third question shows nothing and does not count.
    assert found["kept_tokens"] == (13 + 23 + 13) / 2


def test_whole_shares_tell_gold_items_from_others_also_where_the_place_is_not_known() -> None:
    kept, cut = [0.5, 0.4, 0.4], [0.5, 0.6, 0.4]
    found = metrics(
        count(
            [
                asked(
                    scored(kept, 2, is_gold=True),
                    scored(cut, 2, [0], item_id="b"),
                    scored(kept, 2, item_id="c"),
                    scored(cut, 2, item_id="d"),
                    scored(cut, 2, item_id="e"),
                )
            ]
        )
    )
    assert found["whole_gold"] == 0.5
    assert found["whole_other"] == pytest.approx(1 / 3)
    assert found["pruned"] == 3 / 5


def test_decision_accuracy_pools_decisions_and_not_questions() -> None:
    right = scored([0.5, 0.6, 0.4, 0.7, 0.5, 0.3, 0.2], 4, [0])
    wrong = scored([0.5, 0.4, 0.6], 2, [0])
    assert metrics(count([asked(right, place=0), asked(wrong, place=1)]))["decision_accuracy"] == pytest.approx(2 / 3)


def test_parts_of_counts_keep_their_questions() -> None:
    counts = count(
        [
            asked(scored([0.5, 0.6, 0.4], 2), place=3, dataset="x"),
            asked(scored([0.5, 0.6, 0.4], 2, modality="table"), place=7, dataset="y"),
        ]
    )
    part = counts.where(counts.modality == "table")
    assert (len(part), part.question.tolist(), part.dataset.tolist()) == (1, [7], ["y"])


def test_levels_are_relative_to_the_root() -> None:
    levels = level_scores([asked(scored([0.5, 0.6, 0.4], 2, [0])), asked(scored([0.5, 0.9, 0.4], 2))])
    assert [(level.depth, level.gold, level.nodes) for level in levels] == [(1, True, 1), (1, False, 1)]
    assert levels[0].quantiles[2] == pytest.approx(0.1)
    assert levels[1].quantiles[2] == pytest.approx(-0.1)
    assert level_scores([asked(scored([0.5], 1))]) == []


@given(st.integers(1, 12), st.integers(2, 4), st.data())
def test_laws_of_counts(n_fragments: int, branching: int, data: st.DataObject) -> None:
    hierarchy = balanced(n_fragments, branching)
    marks = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.302]), min_size=hierarchy.size, max_size=hierarchy.size)
    gold = data.draw(st.sets(st.integers(0, n_fragments - 1), min_size=1))
    item = scored(data.draw(marks), n_fragments, sorted(gold), branching=branching)
    found = columns(item)
    assert found["kept"] + found["split"] + found["dropped"] == found["decisions"]
    assert found["gold_left"] + found["gold_lost"] == found["gold"]
    assert (
        sum(value for name, value in found.items() if name.startswith("gold_lost_") and name[-1].isdigit())
        == (found["gold_lost"])
    )
    assert found["whole"] <= 1 - found["pruned"]
    assert 13 <= found["tokens_kept"] <= found["tokens_whole"]
    assert found["decided"] <= found["instances"] <= found["decisions"]
    left = fragments_of(item.hierarchy, refine(item.hierarchy, item.scores))
    assert left.sum() == found["fragments_kept"] == under(item.hierarchy, left)[0]
