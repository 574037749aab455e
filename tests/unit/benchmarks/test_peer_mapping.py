from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.mapping import locate_pieces, through_space

TEXT = "One is here. Two\n is there. One is here. End"


def test_a_start_that_fits_is_taken_and_one_that_does_not_is_searched_for() -> None:
    pieces = ["One is here.", "One is here.", "End"]
    assert locate_pieces(TEXT, pieces, [0, 28, 7]) == [(0, 12), (28, 40), (41, 44)]


def test_equal_pieces_are_found_one_behind_the_other() -> None:
    pieces = ["One is here.", "One is here."]
    assert locate_pieces(TEXT, pieces, [None, -1]) == [(0, 12), (28, 40)]


def test_white_space_of_a_piece_may_be_another_than_the_texts() -> None:
    assert locate_pieces(TEXT, ["Two is there."], [None]) == [(13, 27)]


def test_a_piece_that_only_stands_earlier_is_found_there() -> None:
    assert locate_pieces(TEXT, ["End", "Two"], [None, None]) == [(41, 44), (13, 16)]


def test_what_is_not_there_or_blank_has_no_place() -> None:
    assert locate_pieces(TEXT, ["Three.", " \n", "End"], [0, None, None]) == [None, None, (41, 44)]


def test_the_space_behind_a_piece_goes_with_it() -> None:
    assert through_space("a. \n b", 2) == 5
    assert through_space("a.  ", 2) == 4
    assert through_space("ab", 1) == 1


@given(st.lists(st.text("ab .\n", min_size=1, max_size=6), max_size=8))
def test_parts_of_a_text_in_order_get_their_own_places(parts: list[str]) -> None:
    text = "".join(parts)
    starts = [sum(map(len, parts[:place])) for place in range(len(parts))]
    for part, start, span in zip(parts, starts, locate_pieces(text, parts, starts), strict=True):
        assert span == (None if not part.strip() else (start, start + len(part)))


@given(st.lists(st.text("ab .\n", min_size=1, max_size=6), max_size=8))
def test_a_search_finds_every_part_of_a_text(parts: list[str]) -> None:
    text = "".join(parts)
    for part, span in zip(parts, locate_pieces(text, parts, [None] * len(parts)), strict=True):
        assert (span is None) == (not part.strip())
        assert span is None or text[slice(*span)].split() == part.split()
