from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from benchmarks.peers.measures import CutItem, as_asked, cut_item, measure
from canopy_backend.fragments import fragment
from canopy_backend.items import ImageItem, TableItem, TextItem
from canopy_backend.tokenization import TokenCounter


class Characters:
    """A reader of one token a character."""

    def count(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([len(text) for text in texts], np.int32)


COUNTER = cast(TokenCounter, Characters())
# Fragments: [0, 12), [12, 23), [23, 32).
TEXT = TextItem(id="t", title="Tea", text="Tea is warm. It is old. It lasts.")
TABLE = TableItem(id="r", title="T", columns=["a", "b"], rows=[["1", "2"], ["33", "44"], ["5", "6"]])


def cut_text(gold: Sequence[int], pieces: Sequence[tuple[int, int]], lost: dict[int, str] | None = None) -> CutItem:
    fragments = fragment(TEXT)
    mask = np.isin(np.arange(len(fragments)), gold)
    return cut_item(TEXT, fragments, mask, pieces, lost or {}, COUNTER)


def test_the_toy_text_has_three_sentences() -> None:
    assert fragment(TEXT).spans.tolist() == [[0, 13], [13, 24], [24, 33]]


def test_a_piece_costs_its_tokens_with_the_space_behind_it() -> None:
    item = cut_text([1], [(0, 12), (13, 23), (24, 33)])
    assert item.tokens.tolist() == [13, 11, 9]
    assert item.prefix == len("Tea")
    assert item.shares.tolist() == [[0.0], [1.0], [0.0]]


def test_tokens_and_recall_at_each_setting() -> None:
    item = cut_text([0, 1], [(0, 12), (13, 23), (24, 33)])
    row = measure([item], [[[]], [[0]], [[2, 1]], [[0, 1, 2]]])
    assert row.tokens.tolist() == [0, 13 + 3, 20 + 3, 33 + 3]
    assert row.left.tolist() == [0, 1, 1, 2]
    assert (row.gold, row.gold_any) == (2, 2)


def test_a_repeated_piece_costs_twice_and_counts_once() -> None:
    row = measure([cut_text([0], [(0, 12), (13, 23)])], [[[0, 0, 1, 0]]])
    assert row.tokens.tolist() == [3 * 13 + 11 + 3]
    assert row.left.tolist() == [1]


@pytest.mark.parametrize(("end", "left"), [(9, 1), (8, 0)])
def test_a_fragment_is_left_when_four_fifths_of_its_characters_are(end: int, left: int) -> None:
    # "It lasts." has 8 characters without the space: 7 of 8 are enough, 6 of 8 are not.
    row = measure([cut_text([2], [(0, 24), (24, 24 + end - 1)])], [[[1]]])
    assert row.left.tolist() == [left]


def test_a_fragment_in_two_pieces_is_left_when_both_are_kept() -> None:
    item = cut_text([0], [(0, 6), (7, 12)])
    assert measure([item], [[[0]], [[1]], [[0, 1]]]).left.tolist() == [0, 0, 1]


def test_a_piece_without_a_place_costs_tokens_and_holds_no_gold() -> None:
    item = cut_text([0], [(-1, -1), (13, 23)], {0: "Tea is warm!!"})
    row = measure([item], [[[0]]])
    assert row.tokens.tolist() == [13 + 3]
    assert row.left.tolist() == [0]


def test_rows_are_the_pieces_of_a_table() -> None:
    asked = as_asked(TABLE)
    assert asked["text"] is None
    assert asked["lines"] == ["| 1 | 2 |", "| 33 | 44 |", "| 5 | 6 |"]
    fragments = fragment(TABLE)
    item = cut_item(TABLE, fragments, np.array([False, True, False]), [[0, 1], [1, 2], [2, 3]], {}, COUNTER)
    row = measure([item], [[[0, 2]], [[1]]])
    assert row.tokens.tolist() == [18 + len(asked["prefix"]), 11 + len(asked["prefix"])]
    assert row.left.tolist() == [0, 1]


def test_gold_of_an_item_with_one_fragment_counts_apart() -> None:
    picture = ImageItem(id="p", title="P", caption="A cup.")
    item = cut_item(picture, fragment(picture), np.array([True]), [[0, 1]], {}, COUNTER)
    row = measure([item, cut_text([2], [(24, 33)])], [[[0], []], [[], [0]]])
    assert row.left.tolist() == [0, 1]
    assert row.left_any.tolist() == [1, 1]
    assert (row.gold, row.gold_any) == (1, 2)


def test_an_item_without_gold_or_pieces_is_nothing_but_its_cost() -> None:
    empty = TextItem(id="e", title="Empty", text="")
    item = cut_item(empty, fragment(empty), None, [], {}, COUNTER)
    row = measure([item], [[[]]])
    assert row.tokens.tolist() == [0]
    assert row.gold_any == 0
