"""Arms, the pooled corpus, and a run of arms without a server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_toys import SETTING, Client, Store, assembler, item, outcome, question, run

from canopy_backend.errors import RetrievalError, TrainingError
from canopy_client.deadline import Deadline
from canopy_client.llm.base import Completion
from canopy_training.loop.arms import ARMS, BASELINE, Arm, choose
from canopy_training.loop.command import by_file
from canopy_training.loop.corpus import corpus_name, pool
from canopy_training.loop.gold import gold_of
from canopy_training.loop.keep import Kept
from canopy_training.loop.metered import UNREAD, Clock, MeteredModel
from canopy_training.loop.run import Asked, Stage, run_arm

Q = question("q", ("a", 0), ("b", 3))


def asked(*questions: Any) -> list[Asked]:
    return [Asked(one, gold_of(one)[0]) for one in questions]


def stage(store: Store, llm: Any = None) -> Stage:
    return Stage(Client(store), store, llm, assembler(), 10.0)  # type: ignore[arg-type]


class Model:
    """A critic that always asks for B, and a reader that says two."""

    name = "model"

    def __init__(self) -> None:
        self.schemas: list[bool] = []

    async def generate(self, messages: Any, *, max_tokens: int, schema: Any = None, deadline: Deadline) -> Completion:
        self.schemas.append(schema is not None)
        await asyncio.sleep(0.01)
        if schema is None:
            return Completion("Two [1].")
        return Completion('{"rationale":"r","answer":"none","sufficient":"no","missing":"b","query":"B"}')

    async def close(self) -> None:
        pass


def test_names_are_unique_and_the_baseline_is_always_there() -> None:
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert ARMS[0].name == BASELINE
    assert [arm.name for arm in choose(["hybrid-1*"], model=True)] == [BASELINE, "hybrid-10"]
    assert choose([], model=True) == list(ARMS)


def test_without_a_model_nobody_reads_and_its_critic_is_left_out() -> None:
    chosen = choose([], model=False)
    assert not any(arm.reads or arm.critic == "model" for arm in chosen)
    assert {arm.critic for arm in chosen} == {"none", "titles", "oracle"}


def test_a_pattern_that_fits_nothing_is_named() -> None:
    with pytest.raises(TrainingError, match=r"--arm 'crit' fits none of single-10, "):
        choose(["single-*", "crit"], model=True)


@pytest.mark.parametrize(
    ("name", "family"),
    [("single-10", "single"), ("critic-10-whole", "critic-whole"), ("titles-10-follow-5", "titles-follow-5")],
)
def test_a_family_differs_by_k_alone(name: str, family: str) -> None:
    assert next(arm for arm in ARMS if arm.name == name).family == family


def test_a_pool_has_each_item_once_and_refuses_two_of_one_id() -> None:
    other = question("r", ("b", 0), ("c", 1))
    assert [one.id for one in pool([Q, other])] == ["a", "b", "c"]
    changed = msgspec.structs.replace(other, items=(item("b", "Another text."), item("c")))
    with pytest.raises(TrainingError, match="question 'r': its item 'b' is another one"):
        pool([Q, changed])


NAMES = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)


@given(NAMES, st.randoms())
def test_a_corpus_is_named_by_its_contents_and_encoder_whatever_their_order(names: list[str], draw: Any) -> None:
    items = [item(name) for name in names]
    mixed = list(items)
    draw.shuffle(mixed)
    name = corpus_name(items, "r" * 16)
    assert corpus_name(mixed, "r" * 16) == name
    assert corpus_name(items, "s" * 16) != name
    assert corpus_name([*items[:-1], item(names[-1], "Changed.")], "r" * 16) != name
    assert corpus_name([*items[:-1], item(f"{names[-1]}x")], "r" * 16) != name


async def test_a_single_round_finds_what_the_search_finds() -> None:
    store = Store({Q.question: [item("c"), item("b")]})
    (one,) = await run_arm(stage(store), Arm(name="x", k=2), asked(Q), in_flight=1)
    assert [state.found for state in one.rounds] == [(1, 0, 1, 0)]
    assert (one.stop, one.calls, one.marks, store.asked) == ("max_rounds", {}, None, [(2, None)])


async def test_whole_items_keep_every_gold_fragment() -> None:
    store = Store({Q.question: [item("a"), item("b")]})
    (one,) = await run_arm(stage(store), Arm(name="x", compress=False), asked(Q), in_flight=1)
    assert one.rounds[0].found == (2, 2, 2, 2)


async def test_the_oracle_searches_the_missing_title() -> None:
    store = Store({Q.question: [item("a"), item("c")], "B": [item("a"), item("b"), item("d")]})
    arm = Arm(name="x", k=3, critic="oracle", follow_up_k=2)
    (one,) = await run_arm(stage(store), arm, asked(Q), in_flight=1)
    assert [state.found.items for state in one.rounds] == [1, 2]
    assert [state.new for state in one.rounds] == [2, 1]
    assert (one.stop, one.queries, store.asked) == ("sufficient", ["B"], [(3, None), (2, None)])


async def test_words_go_to_the_store_with_the_vector() -> None:
    store = Store({Q.question: [item("a")]})
    await run_arm(stage(store), Arm(name="x", words=True), asked(Q), in_flight=1)
    assert store.asked == [(10, Q.question)]


async def test_the_model_judges_and_reads_and_its_time_is_no_overhead() -> None:
    store = Store({Q.question: [item("a")], "B": [item("b")]})
    model = Model()
    (one,) = await run_arm(stage(store, model), Arm(name="x", critic="model", reads=True), asked(Q), in_flight=1)
    # The second verdict asks for what was asked already.
    assert (one.stop, one.calls, model.schemas) == ("repeated_query", {"critic": 2, "reader": 1}, [True, True, False])
    assert one.marks == (1.0, 1.0, 1.0)
    assert one.seconds["overhead"] <= one.seconds["total"] - 0.03
    assert 0 < one.seconds["processor"] <= one.seconds["overhead"] + 0.001


async def test_where_nobody_reads_the_reader_is_not_asked() -> None:
    store = Store({Q.question: [item("a")], "B": [item("b")]})
    model = Model()
    (one,) = await run_arm(stage(store, model), Arm(name="x", critic="model"), asked(Q), in_flight=1)
    assert (one.calls, model.schemas, one.text) == ({"critic": 2}, [True, True], "")


class Flaky(Store):
    """Fails for one query, and counts how many searches are under way at once."""

    def __init__(self, bad: str, *good: str) -> None:
        super().__init__({name: [item("a")] for name in good})
        self.bad, self.now, self.most = bad, 0, 0

    async def search(self, vector: Any, k: int, **options: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        if self.texts[int(vector[0])] == self.bad:
            raise RetrievalError("the store is gone")
        return await super().search(vector, k, **options)


async def test_a_failed_question_is_an_outcome_and_the_others_go_on() -> None:
    questions = [question(f"q{n}", ("a", 0)) for n in range(9)]
    store = Flaky(questions[3].question, *(one.question for one in questions))
    seen: list[int] = []
    outcomes = await run_arm(stage(store), Arm(name="x"), asked(*questions), in_flight=4, advance=seen.append)
    assert [one.question for one in outcomes] == [f"q{n}" for n in range(9)]
    assert [one.error for one in outcomes if one.error] == ["RetrievalError: the store is gone"]
    assert (store.most, sum(seen)) == (4, 9)


async def test_an_arm_of_which_nothing_worked_ends_the_run() -> None:
    store = Flaky(Q.question)
    with pytest.raises(TrainingError, match="arm x: none of 1 questions was worked on: RetrievalError: the store"):
        await run_arm(stage(store), Arm(name="x"), asked(Q), in_flight=1)


async def test_no_model_says_that_nobody_read() -> None:
    silent = MeteredModel(None, Clock())
    assert (silent.name, (await silent.generate([], max_tokens=1, deadline=Deadline())).text) == ("none", UNREAD)


def test_a_clock_adds_up_and_sleeping_costs_no_processor() -> None:
    clock = Clock()
    for _ in range(2):
        with clock.running():
            time.sleep(0.05)
    assert clock.seconds >= 0.1
    assert clock.processor < clock.seconds / 2


def test_files_that_share_a_set_are_sets_of_their_own() -> None:
    one, two, other = question("q"), question("q"), question("r", dataset="other")
    files = [Path("toy.jsonl"), Path("toy_more.questions.jsonl.gz"), Path("third.jsonl")]
    found = by_file(files, [[one], [two], [other]], "dev")
    assert [(each.id, each.dataset) for each in found] == [("q", "toy"), ("q", "toy_more"), ("r", "other")]
    with pytest.raises(TrainingError, match=r"no question of split 'test' \(found: \['dev'\]\)"):
        by_file(files[:1], [[one]], "test")


def test_an_arm_that_was_run_is_taken_again_under_equal_conditions_only(tmp_path: Path) -> None:
    arm = Arm(name="single-10")
    done = run(arm, outcome("q", (1, 1, 10)))
    kept = Kept(tmp_path / "kept", SETTING, ["toy q"])
    assert kept.load(arm) is None
    kept.store(done)
    assert kept.load(arm) == done
    assert kept.load(Arm(name="single-10", reads=True)) is None
    assert Kept(tmp_path / "kept", SETTING, ["toy r"]).load(arm) is None
    changed = msgspec.structs.replace(SETTING, encoder="f" * 16)
    assert Kept(tmp_path / "kept", changed, ["toy q"]).load(arm) is None
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(b"{")
    assert kept.load(arm) is None


@pytest.mark.parametrize(("failed", "kept"), [(0, True), (1, True), (2, False)])
def test_an_arm_of_which_much_failed_is_run_again(tmp_path: Path, failed: int, kept: bool) -> None:
    arm = Arm(name="single-10")
    whole = [outcome(f"q{n}", (1, 1, 10)) for n in range(20 - failed)]
    store = Kept(tmp_path / "kept", SETTING, ["toy q"])
    store.store(run(arm, *whole, *(outcome(f"f{n}") for n in range(failed))))
    assert (store.load(arm) is not None) is kept
