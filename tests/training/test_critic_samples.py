"""Right verdicts on evidence, and the stories that are made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from critic_toys import evidence, two_hops
from hypothesis import given
from hypothesis import strategies as st

from canopy_backend.errors import TrainingError
from canopy_backend.items import TableItem, TextItem
from canopy_client.critic import parse_verdict
from canopy_training.critic import states
from canopy_training.critic.samples import classifier_stories, critic_sample, stories, table_label, verdict
from canopy_training.critic.states import GoldItem, gold_items, in_hops
from canopy_training.data import Gold, Question

QUESTION = two_hops()


def test_all_gold_in_the_evidence_is_sufficient() -> None:
    shown = [evidence("d1"), evidence("B (person)"), evidence("A")]
    assert verdict(QUESTION, shown, []) == {
        "rationale": "A [3]; B [2]",
        "answer": "Lund",
        "sufficient": "yes",
        "missing": "",
        "query": "",
    }


def test_a_missing_bridge_is_asked_for_by_its_name() -> None:
    found = verdict(QUESTION, [evidence("A", "A was made by B.")], [])
    assert found == {
        "rationale": "A [1]; B not found",
        "answer": "none",
        "sufficient": "no",
        "missing": "facts about B",
        "query": "B",
    }


def test_of_two_missing_ones_the_one_that_the_question_names_is_first() -> None:
    found = verdict(QUESTION, [evidence("d1", "B is here.")], [])
    assert found is not None
    assert (found["query"], found["rationale"]) == ("A", "A not found; B not found")


def test_what_was_searched_already_is_not_asked_for_again() -> None:
    found = verdict(QUESTION, [evidence("d1")], ["facts about A"])
    assert found is not None
    assert found["query"] == "B"
    assert verdict(QUESTION, [evidence("A")], ["facts about B"]) is None
    assert critic_sample(QUESTION, [evidence("A")], ["facts about B"]) is None


def test_a_sample_is_read_back_as_its_verdict() -> None:
    sample = critic_sample(QUESTION, [evidence("A")], ["facts about d2"])
    assert sample is not None
    found = parse_verdict(sample.answer)
    assert found is not None
    assert (found.sufficient, found.missing, found.query, found.answer) == (False, "facts about B", "B", "")
    assert "- facts about d2" in sample.messages[-1].content


@given(st.integers(0, 10_000), st.sampled_from(["A B d1 d2 d3", "d1 d2 A d3", "d1 d2 d3 d4 d5 d6 d7 d8 d9 d10"]))
def test_every_verdict_of_a_story_fits_what_it_shows(seed: int, found: str) -> None:
    (story,) = stories([two_hops(found=found)], seed=seed)
    assert {sample.role for sample in story} <= {"critic", "reader"}
    for sample in story:
        shown = sample.messages[-1].content
        complete = "\nA\n" in shown and "\nB (person)\n" in shown
        if sample.role == "reader":
            assert complete
            assert sample.answer.startswith("Lund [")
            continue
        said = json.loads(sample.answer)
        assert said["sufficient"] == ("yes" if complete else "no")
        for number in (word.strip("[];") for word in said["rationale"].split() if word.startswith("[")):
            assert f'<item number="{number}"' in shown


def test_stories_depend_on_the_seed_alone() -> None:
    many = [two_hops(f"q{place}") for place in range(6)]
    assert stories(many, seed=3, passes=2) == stories(many, seed=3, passes=2)
    assert stories(many, seed=3) != stories(many, seed=4)
    told = [one for story in stories(many, seed=0, passes=9) for one in story if one.role == "critic"]
    both = [json.loads(one.answer)["sufficient"] for one in told]
    assert 0.25 < both.count("yes") / len(both) < 0.75


def about_table(number: int, question: str, rows: tuple[int, ...], **meta: str) -> Question:
    table = TableItem(id="t", columns=("a",), rows=(("1",), ("2",), ("3",), ("4",)))
    gold = (Gold(item_id="t", rows=rows),)
    return Question(
        id=str(number), dataset="tables", split="train", question=question, answers=("x",), items=(table,), gold=gold,
        meta=dict(meta),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("question", "rows", "meta", "label"),
    [
        ("Which river passes Lund?", (1,), {}, "lookup"),
        ("What is the average length?", (0, 2), {"answer_type": "arithmetic"}, "aggregate"),
        ("What is the sum?", (0,), {"answer_type": "arithmetic"}, None),
        ("How many rivers are longer than 5 km?", (0, 1, 2), {}, "aggregate"),
        ("What did she do there?", (0, 1), {}, None),
    ],
)
def test_how_a_table_is_read(question: str, rows: tuple[int, ...], meta: dict[str, str], label: str | None) -> None:
    assert table_label(about_table(0, question, rows, **meta)) == label


def test_the_classifier_learns_both_labels_alike() -> None:
    lookups = [about_table(place, f"Which is {place}?", (0,)) for place in range(9)]
    scans = [about_table(10 + place, f"How many are {place}?", (0, 1)) for place in range(3)]
    answers = [sample.answer for story in classifier_stories([*lookups, *scans], 20, seed=0) for sample in story]
    assert sorted(answers) == ['{"label":"aggregate"}'] * 3 + ['{"label":"lookup"}'] * 3


def test_gold_items_are_those_of_the_data_in_the_order_of_the_hops() -> None:
    first = TextItem(id="1", title="Lund Cathedral", text="It stands in Lund. It is old.")
    second = TextItem(id="2", title="Maker (builder)", text="Maker built Lund Cathedral.")
    question = Question(
        id="q", dataset="d", split="train", question="Where stands what Maker built?", answers=("Lund",),
        items=(first, second), gold=(Gold(item_id="1", span=(0, 18)), Gold(item_id="2", span=(0, 27))),
        meta={"missing": [["Sweden", 0]]},
    )  # fmt: skip
    found = gold_items(question)
    assert [one.title for one in found] == ["Maker (builder)", "Sweden", "Lund Cathedral"]
    assert found[1] == GoldItem("Sweden", "", "")
    assert in_hops(found[::-1], question.question, "Lund") == found


def test_states_are_kept_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "states.jsonl"
    states.save(file, [QUESTION, QUESTION])
    assert states.load(file) == [QUESTION, QUESTION]
    file.write_text("{")
    with pytest.raises(TrainingError, match="delete it to search again"):
        states.load(file)
