"""From annotated places to gold fragments."""

from __future__ import annotations

from canopy_backend.items import Cue, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_training.data import Gold, Question
from canopy_training.gold import locate

TEXT = TextItem(id="t", title="Dam", text="Hale drew the dam. She left in 1930. It was sunny.")
TABLE = TableItem(
    id="r", title="Cups 1930", columns=["Year", "Gold"], rows=[["1930", "yes"], ["1931", "no"], ["1932", "gold"]]
)
VIDEO = VideoItem(id="v", duration_s=90, segments=[Cue(0, 5, "Hello."), Cue(40, 45, "Hale left.")])
IMAGE = ImageItem(id="i", caption="A dam.")


def places(
    *gold: Gold, items: tuple[Item, ...] = (TEXT, TABLE, VIDEO, IMAGE), answers: tuple[str, ...] = ()
) -> tuple[dict[str, list[int]], list[str]]:
    question = Question(id="q", dataset="d", split="", question="?", answers=answers, items=items, gold=gold, meta={})
    located, lost = locate(question)
    assert all(entry.weak is (not gold) for entry in located)
    return {entry.item.id: entry.gold.nonzero()[0].tolist() for entry in located}, lost


def test_a_span_takes_every_sentence_that_it_overlaps() -> None:
    assert places(Gold(item_id="t", span=(20, 23))) == ({"t": [1]}, [])
    assert places(Gold(item_id="t", span=(10, 25))) == ({"t": [0, 1]}, [])


def test_overlapping_and_repeated_spans_count_once() -> None:
    assert places(Gold(item_id="t", span=(0, 4)), Gold(item_id="t", span=(2, 9)), Gold(item_id="t", span=(0, 4))) == (
        {"t": [0]},
        [],
    )


def test_rows_and_times() -> None:
    assert places(Gold(item_id="r", rows=(0, 2, 2)))[0] == {"r": [0, 2]}
    assert places(Gold(item_id="v", time=(25.0, 31.0)))[0] == {"v": [0, 1]}
    # Half-open: what ends where a segment starts does not touch it.
    assert places(Gold(item_id="v", time=(0.0, 30.0)))[0] == {"v": [0]}


def test_an_answer_takes_every_fragment_that_holds_it_but_not_the_header_or_the_title() -> None:
    assert places(Gold(item_id="t", answer="HALE"))[0] == {"t": [0]}
    assert places(Gold(item_id="r", answer="gold"))[0] == {"r": [2]}
    assert places(Gold(item_id="v", answer="hale left"))[0] == {"v": [1]}


def test_a_whole_image_is_gold_and_a_whole_text_has_no_place() -> None:
    located, lost = places(Gold(item_id="i"), Gold(item_id="t", kind="paragraph"))
    assert located == {"i": [0]}
    assert lost == ["question 'q', item 't': no place for its gold (paragraph)"]


def test_an_answer_that_stands_nowhere_is_named() -> None:
    assert places(Gold(item_id="t", answer="Rome")) == (
        {},
        ["question 'q', item 't': no place for its gold (whole item)"],
    )


def test_answers_alone_are_weak_supervision() -> None:
    assert places(answers=("1930",)) == ({"t": [1], "r": [0]}, [])
    assert places(answers=("Rome",)) == ({}, ["question 'q': no item holds one of its answers"])
