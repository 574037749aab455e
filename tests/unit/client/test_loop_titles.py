"""The critic that follows names: what counts as a name, which one is followed, when it has enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from client_fakes import FakeCompressor, MemoryRetriever, ScriptedModel, make_evidence, text_item
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import ServerUnavailable
from canopy_client import Orchestrator
from canopy_client.deadline import Deadline
from canopy_client.names import LONGEST, READ_CHARS, names, small_words
from canopy_client.titles import TitleCritic, candidates

NEVER = Deadline()


class Encoder:
    """Scores names by a table: the first axis is the question's."""

    def __init__(self, **scores: float) -> None:
        self.scores = {name.replace("_", " "): score for name, score in scores.items()}
        self.asked: list[list[str]] = []

    async def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.asked.append(list(texts))
        cosines = np.array([1.0, *(self.scores.get(text, 0.0) for text in texts[1:])], np.float32)
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)


def found(text: str) -> list[str]:
    return list(names(text, small_words([text])))


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


def test_what_was_retrieved_or_searched_is_no_candidate() -> None:
    evidence = [
        make_evidence(text_item("1", title="ada brannick"), "Ada Brannick drew Gannet Rock and Skerry Light."),
        make_evidence(text_item("2", title="Tides"), "Tides rise at Skerry  Light."),
    ]
    assert candidates("Which tower did Ada Brannick design?", evidence, ["Skerry Light"]) == [
        "Which", "Gannet Rock and Skerry Light", "Gannet Rock", "Skerry", "Light",
    ]  # fmt: skip


async def test_the_name_nearest_to_the_question_is_followed() -> None:
    encoder = Encoder(Gannet_Rock=0.8, Skerry_Light=0.6)
    evidence = [make_evidence(text_item("1", title="X"), "She drew Skerry Light, and then Gannet Rock.")]
    judge = TitleCritic(encoder, least_score=0.5)
    first = await judge.judge("how high is it?", evidence, [], NEVER)
    assert (first.sufficient, first.query, first.missing) == (False, "Gannet Rock", "Gannet Rock")
    assert len(encoder.asked) == 1
    assert await judge.judge("how high is it?", evidence, [], NEVER) == first
    second = await judge.judge("how high is it?", evidence, ["Gannet Rock"], NEVER)
    assert second.query == "Skerry Light"
    third = await judge.judge("how high is it?", evidence, ["Gannet Rock", "Skerry Light"], NEVER)
    assert third.sufficient
    assert not third.query


async def test_no_name_means_enough_and_no_call() -> None:
    encoder = Encoder()
    assert (await TitleCritic(encoder).judge("how high is it?", [], [], NEVER)).sufficient
    assert encoder.asked == []


async def test_the_number_of_scored_names_is_bounded() -> None:
    encoder = Encoder()
    text = ", ".join(f"Tower Number{number}" for number in range(500))
    await TitleCritic(encoder, most_names=20).judge("q", [make_evidence(text_item("1"), text)], [], NEVER)
    assert len(encoder.asked[0]) == 21


async def test_the_loop_follows_names_without_a_language_model_as_critic() -> None:
    first = text_item("a", "Gannet Rock was drawn by Ada Brannick.", title="Gannet Rock")
    second = text_item("b", "Ada Brannick was born in 1850.", title="Ada Brannick")
    retriever = MemoryRetriever({"who drew Gannet Rock?": [first], "Ada Brannick": [second]})
    judge = TitleCritic(Encoder(Ada_Brannick=0.9), least_score=0.5)
    loop = Orchestrator(retriever, FakeCompressor(), ScriptedModel(), critic=judge)
    answer = await loop.answer("who drew Gannet Rock?")
    assert (answer.stop, [one.query for one in answer.rounds][1:]) == ("sufficient", ["Ada Brannick"])
    assert answer.llm_calls == {"reader": 1}


async def test_an_encoder_that_fails_leaves_the_evidence() -> None:
    async def embed(texts: Sequence[str]) -> Any:
        raise ServerUnavailable("gone")

    retriever = MemoryRetriever({"q": [text_item("a", "By Ada Brannick.")]})
    answer = await Orchestrator(retriever, FakeCompressor(), ScriptedModel(), critic=TitleCritic(embed)).answer("q")
    assert (answer.stop, answer.error, answer.text) == ("critic_failed", "gone", "[1] It is so.")
