"""Exact match, F1 and containment of a reader's answer."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_training.loop.answers import mark, normal


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Beatles!", "beatles"),
        ("  A man,  an  Island [1, 2] and the sea.", "man island and sea"),
        ("U.S.A. [3]", "usa"),
        ("theatre", "theatre"),
        ("[judo]", "judo"),
        ("日本", "日本"),
        ("[12]", ""),
    ],
)
def test_normalised_as_in_squad_without_citations(text: str, wanted: str) -> None:
    assert normal(text) == wanted


@pytest.mark.parametrize(
    ("answer", "accepted", "marks"),
    [
        ("The Rush [1].", ["Rush"], (1.0, 1.0, 1.0)),
        ("It was the band Rush [1].", ["Rush"], (0.0, 2 / 5, 1.0)),
        ("Rush hour", ["Spurs", "rush"], (0.0, 2 / 3, 1.0)),
        ("rushing", ["rush"], (0.0, 0.0, 0.0)),
        ("new new york", ["new york"], (0.0, 4 / 5, 1.0)),
        ("york new", ["new york"], (0.0, 1.0, 0.0)),
        ("", ["the"], (1.0, 1.0, 0.0)),
        ("", ["yes"], (0.0, 0.0, 0.0)),
        ("yes", [], (0.0, 0.0, 0.0)),
    ],
)
def test_marks_are_of_the_best_accepted_answer(
    answer: str, accepted: list[str], marks: tuple[float, float, float]
) -> None:
    assert mark(answer, accepted) == pytest.approx(marks)


TEXTS = st.text(st.sampled_from(string.ascii_lowercase[:4] + " .,[]1"), max_size=20)


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_exact_is_never_above_f1_and_another_accepted_answer_never_harms(answer: str, accepted: list[str]) -> None:
    marks = mark(answer, accepted)
    assert all(0 <= one <= 1 for one in marks)
    assert marks.exact <= marks.f1
    for more, before in zip(mark(answer, [*accepted, answer]), marks, strict=True):
        assert more >= before
    assert mark(answer, [answer]).exact == 1


@given(TEXTS, TEXTS)
def test_f1_is_the_same_from_both_sides(one: str, other: str) -> None:
    assert mark(one, [other]).f1 == pytest.approx(mark(other, [one]).f1)
