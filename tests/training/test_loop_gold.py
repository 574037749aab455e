"""What of the gold an answer's evidence holds, and how outcomes are read off answers."""

from __future__ import annotations

import msgspec
import pytest
from loop_toys import answer, assembler, evidence, item, question

from canopy_backend.errors import TrainingError
from canopy_client.deadline import Deadline
from canopy_training.data import Gold, Question
from canopy_training.loop.gold import found, gold_of
from canopy_training.loop.oracle import OracleCritic
from canopy_training.loop.outcome import blank, measured

TWO = question("q", ("a", 0), ("a", 2), ("b", 3))


def test_gold_items_have_the_sentences_that_spans_overlap() -> None:
    gold, lost = gold_of(TWO)
    assert [(one.item_id, one.title, one.fragments.tolist()) for one in gold] == [
        ("a", "A", [True, False, True, False]),
        ("b", "B", [False, False, False, True]),
    ]
    assert lost == []


def test_gold_without_a_place_counts_as_a_whole_and_never_as_shown() -> None:
    lost_gold = Question(
        id="q", dataset="d", split="dev", question="?", answers=(), items=(item("a"),), meta={},
        gold=(Gold(item_id="a", answer="nowhere"),),
    )  # fmt: skip
    (gold,), lost = gold_of(lost_gold)
    assert (gold.fragments.tolist(), gold.located, len(lost)) == ([True] * 4, False, 1)
    assert found([gold], answer([evidence("a", (1, 3))]).evidence, 1) == (1, 2, 0, 0)


def test_without_gold_the_items_that_hold_an_answer_are_gold() -> None:
    weak = Question(
        id="q", dataset="d", split="dev", question="?", answers=("six",), meta={}, gold=(),
        items=(item("a"), item("b", "Nothing at all.")),
    )  # fmt: skip
    (gold,), _ = gold_of(weak)
    assert (gold.item_id, gold.fragments.tolist()) == ("a", [False, False, True, False])


def test_rounds_add_up_and_a_round_knows_nothing_of_later_ones() -> None:
    gold, _ = gold_of(TWO)
    done = answer([evidence("a", (0, 1)), evidence("c")], [evidence("b", (2, 4))])
    assert found(gold, done.evidence, 1) == (1, 1, 2, 1)
    assert found(gold, done.evidence, 2) == (2, 2, 3, 2)


def test_what_the_budget_took_away_is_not_found() -> None:
    gold, _ = gold_of(TWO)
    assert found(gold, answer([evidence("a", (0, 1), (2, 3))]).evidence, 1) == (1, 2, 2, 2)
    assert found(gold, answer([evidence("a", (0, 1), (2, 3))], shown=1).evidence, 1) == (1, 1, 2, 1)
    assert found(gold, answer([evidence("a", (0, 1), (2, 3))], shown=0).evidence, 1) == (0, 0, 0, 0)


def test_another_cut_of_the_server_is_refused() -> None:
    gold, _ = gold_of(question("q", ("a", 0)))
    done = answer([evidence("a")])
    done.evidence[0].evidence = msgspec.structs.replace(done.evidence[0].evidence, fragments=3)
    with pytest.raises(TrainingError, match="cuts it into 3 fragments, this version into 4"):
        found(gold, done.evidence, 1)


def test_an_outcome_has_what_each_round_left_and_no_text_of_an_item() -> None:
    gold, _ = gold_of(TWO)
    done = answer([evidence("a", (0, 1))], [evidence("b", (3, 4))], text="It is two [1].", stop="sufficient")
    outcome = measured(TWO, gold, done, assembler(), read=True, overhead={"overhead": 0.5, "processor": 0.25})
    assert [(one.hits, one.new, one.found.items) for one in outcome.rounds] == [(1, 1, 1), (1, 1, 2)]
    assert outcome.rounds[0].tokens < outcome.rounds[1].tokens
    assert outcome.after(1).found.items == 1
    assert outcome.after(3) is outcome.rounds[1]
    assert (outcome.gold_items, outcome.gold_fragments, outcome.stop) == (2, 3, "sufficient")
    assert outcome.marks is not None
    assert (outcome.marks.exact, outcome.marks.holds) == (0.0, 1.0)
    assert outcome.seconds == {
        "retrieve": 1.0,
        "compress": 0.5,
        "total": 2.0,
        "overhead": 0.5,
        "processor": 0.25,
        "reader": 0.5,
    }
    assert (outcome.queries, outcome.calls) == (["query 2"], {"critic": 1, "reader": 1})


def test_without_a_reader_there_are_no_marks_and_no_call_of_it() -> None:
    gold, _ = gold_of(TWO)
    outcome = measured(TWO, gold, answer([evidence("a")]), assembler(), read=False, overhead={})
    assert (outcome.marks, outcome.calls, outcome.text) == (None, {"critic": 1}, "")
    assert "reader" not in outcome.seconds


def test_an_answer_without_a_round_is_a_failure() -> None:
    gold, _ = gold_of(TWO)
    done = answer()
    done.error = "time was up"
    assert measured(TWO, gold, done, assembler(), read=True, overhead={}) == blank(TWO, gold, error="time was up")


async def test_the_oracle_asks_for_each_missing_title_once() -> None:
    gold, _ = gold_of(TWO)
    oracle, never = OracleCritic(gold), Deadline()
    first = await oracle.judge("?", [], [], never)
    assert (first.sufficient, first.query, first.missing) == (False, "A", "A")
    second = await oracle.judge("?", [evidence("a")], ["A"], never)
    assert second.query == "B"
    given_up = await oracle.judge("?", [evidence("a")], ["A", "B"], never)
    assert (given_up.sufficient, given_up.query) == (False, "")
    assert (await oracle.judge("?", [evidence("b"), evidence("a")], [], never)).sufficient
