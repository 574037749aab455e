"""The critic that follows names: what counts as a name, which one is followed, when it has enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from client_fakes import FakeCompressor, MemoryRetriever, ScriptedModel, make_evidence, text_item
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.evidence import Evidence
from canopy_client import Orchestrator
from canopy_client.deadline import Deadline
from canopy_client.names import LONGEST, READ_CHARS, names, small_words
from canopy_client.titles import TitleCritic, candidates

NEVER = Deadline()


def found(text: str) -> list[str]:
    return [name for name, _ in names(text, small_words([text]))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He met Ada Brannick there.", ["He", "Ada Brannick"]),
        ("The tower is near the sea. The sea is cold.", []),
        ("It was built by the University of the West Indies.", ["It", "University of the West Indies"]),
        ('The film "big stone gap" opened.', ["big stone gap", "The"]),
        ("Élodie Durand’s house in Łódź", ["Élodie Durand", "Łódź"]),
        ("Иван Бунин родился в Воронеже.", ["Иван Бунин", "Воронеже"]),
        ("映画「東京物語」は有名。", ["東京物語"]),
        ("launched as Apollo 11 with Eagle", ["Apollo 11", "Eagle"]),
        ("with Simon and Garfunkel on it", ["Simon and Garfunkel", "Simon", "Garfunkel"]),
        ("known as Barracuda (Gannet Rock), once", ["Barracuda", "Gannet Rock"]),
        ("", []),
        ("…!? 12 345", []),
    ],
)
def test_names_are_told_by_how_they_are_written(text: str, expected: list[str]) -> None:
    assert found(text) == expected


@given(st.text(max_size=300))
@settings(deadline=None)
def test_names_stand_in_the_text_and_are_short(text: str) -> None:
    squeezed = " ".join(text.split())
    for name in found(text):
        assert 2 <= len(name) <= LONGEST
        assert all(word in squeezed for word in name.split())


def test_long_texts_cost_a_bounded_time() -> None:
    assert len(found("Ab cd " * 1_000_000)) <= READ_CHARS / 6 + 1
    assert found('"' * 1_000_000) == []
    assert found("A" * 1_000_000) == []


@given(st.text(max_size=300))
@settings(deadline=None)
def test_a_name_starts_where_it_is_said_to(text: str) -> None:
    for name, start in names(text, frozenset()):
        assert name in text[start : start + len(name) + 4]


def named(question: str, evidence: Sequence[Evidence], searched: Sequence[str] = ()) -> list[str]:
    return [one.name for one in candidates(question, evidence, searched)]


def test_what_was_retrieved_or_searched_is_no_candidate() -> None:
    evidence = [
        make_evidence(text_item("1", title="ada brannick"), "Ada Brannick drew Gannet Rock and Skerry Light."),
        make_evidence(text_item("2", title="Tides"), "Tides rise at Skerry  Light."),
    ]
    assert named("Which tower did Ada Brannick design?", evidence) == [
        "Gannet Rock and Skerry Light", "Gannet Rock", "Skerry Light", "Skerry", "Light",
    ]  # fmt: skip
    left = named("Which tower did Ada Brannick design?", evidence, ["Gannet Rock, Skerry Light"])
    assert left == ["Gannet Rock and Skerry Light"]


QUESTION = "How high is the lighthouse that Ada Brannick drew?"
DRAWN = make_evidence(
    text_item("1", title="Ada Brannick"), "She was born in Upper Torrel. She drew a lighthouse on Gannet Rock."
)
FAR = make_evidence(text_item("2", title="Boats"), "The Merry Widow sank off Cape Wrath.")


async def test_the_names_of_the_sentence_that_answers_most_are_followed() -> None:
    verdict = await TitleCritic().judge(QUESTION, [DRAWN, FAR], [], NEVER)
    assert not verdict.sufficient
    assert verdict.query == verdict.missing
    assert verdict.query.split(", ")[0] == "Gannet Rock"
    assert await TitleCritic().judge(QUESTION, [DRAWN, FAR], [], NEVER) == verdict
    # The order of items counts a little, and what they say more.
    swapped = await TitleCritic().judge(QUESTION, [FAR, DRAWN], [], NEVER)
    assert "Gannet Rock" in swapped.query


async def test_a_name_of_the_question_that_no_title_covers_is_looked_up() -> None:
    evidence = [make_evidence(text_item("1", title="Rhodotypos"), "A shrub of the rose family.")]
    verdict = await TitleCritic().judge("Are Sutera and Rhodotypos both types of shrub?", evidence, [], NEVER)
    assert verdict.query == "Sutera and Rhodotypos"
    assert "Sutera" in named("Are Sutera and Rhodotypos both types of shrub?", evidence)


async def test_follow_ups_are_bounded() -> None:
    verdict = await TitleCritic().judge(QUESTION, [DRAWN, FAR], ["Gannet Rock"], NEVER)
    assert verdict.sufficient
    more = await TitleCritic(follow_ups=2).judge(QUESTION, [DRAWN, FAR], ["Gannet Rock"], NEVER)
    assert not more.sufficient
    assert "Gannet Rock" not in more.query


async def test_no_name_means_enough() -> None:
    assert (await TitleCritic().judge("how high is it?", [], [], NEVER)).sufficient
    assert (await TitleCritic().judge("", [make_evidence(text_item("1"), "…")], [], NEVER)).sufficient


def test_the_number_of_weighed_names_is_bounded() -> None:
    text = ", ".join(f"Tower Number{number}" for number in range(5000))
    assert len(named("q", [make_evidence(text_item(f"{n}"), text.replace("T", f"T{n}")) for n in range(9)])) == 512


@given(st.text(max_size=80), st.lists(st.tuples(st.text(max_size=20), st.text(max_size=120)), max_size=4))
@settings(deadline=None)
async def test_any_text_gives_a_verdict(question: str, texts: list[tuple[str, str]]) -> None:
    evidence = [make_evidence(text_item(f"{n}", text, title), text) for n, (title, text) in enumerate(texts)]
    first = await TitleCritic().judge(question, evidence, [], NEVER)
    assert first == await TitleCritic().judge(question, evidence, [], NEVER)
    assert first.sufficient == (first.query == "")
    assert all(-0.2 <= one.weight <= 1.5 for one in candidates(question, evidence, []))


async def test_the_loop_follows_names_without_a_language_model_as_critic() -> None:
    first = text_item("a", "Gannet Rock was drawn by Ada Brannick.", title="Gannet Rock")
    second = text_item("b", "Ada Brannick was born in 1850 in Torrel.", title="Ada Brannick")
    retriever = MemoryRetriever({"who drew Gannet Rock?": [first], "Ada Brannick": [second]})
    loop = Orchestrator(retriever, FakeCompressor(), ScriptedModel(), critic=TitleCritic())
    answer = await loop.answer("who drew Gannet Rock?")
    assert (answer.stop, [one.query for one in answer.rounds][1:]) == ("sufficient", ["Ada Brannick"])
    assert answer.llm_calls == {"reader": 1}
