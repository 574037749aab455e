"""Figures, aims, page and figure of the loop's report, from outcomes whose figures are known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from loop_toys import SETTING, outcome, run

from canopy_backend.errors import TrainingError
from canopy_training.loop.aims import judge
from canopy_training.loop.answers import Marks
from canopy_training.loop.arms import ARMS
from canopy_training.loop.report import ArmRun, Report, make_report
from canopy_training.loop.summary import sampled, scopes, shared
from canopy_training.loop.tables import markdown

BY_NAME = {arm.name: arm for arm in ARMS}
COST = {"total": 2.0, "overhead": 0.4, "processor": 0.004}


def runs() -> list[ArmRun]:
    """Two questions; the loop finds everything in its second round, the single round half of it."""
    marks = [Marks(1.0, 1.0, 1.0), Marks(0.0, 0.5, 0.0)]
    calls = {"critic": 2, "reader": 1}
    names = ("q1", "q2")
    return [
        run(
            BY_NAME["single-10"],
            *(
                outcome(q, (1 + n, 1, 100), marks=marks[1], calls={"reader": 1}, seconds=COST)
                for n, q in enumerate(names)
            ),
        ),
        run(BY_NAME["single-20"], *(outcome(q, (2, 2, 200), seconds=COST) for q in names)),
        run(
            BY_NAME["critic-10"],
            *(
                outcome(q, (1 + n, 1, 100), (2, 2, 120), marks=marks[n], calls=calls, seconds=COST)
                for n, q in enumerate(names)
            ),
        ),
        run(
            BY_NAME["critic-10-whole"],
            *(outcome(q, (1 + n, 1 + n, 180), (2, 2, 240), seconds=COST) for n, q in enumerate(names)),
        ),
    ]


def report(*more: ArmRun) -> Report:
    return make_report([*runs(), *more], SETTING, command="canopy evaluate --loop", resamples=200)


def test_figures_are_means_over_questions_and_rounds_carry_on() -> None:
    (scope,) = report().scopes
    loop, single = scope.metrics["critic-10"], scope.metrics["single-10"]
    assert scope.name == "hotpotqa"
    assert [loop[f"items_{n}"].value for n in (1, 2, 3)] == [0.5, 1.0, 1.0]
    assert [loop[f"fragments_{n}"].value for n in (1, 2, 3)] == [0.0, 1.0, 1.0]
    assert [loop[f"tokens_{n}"].value for n in (1, 2, 3)] == [100, 120, 120]
    assert single["items_3"].value == single["items_1"].value == 0.5
    assert (single["recall_3"].value, loop["recall_3"].value) == (0.5, 1.0)
    # Of the retrieved gold: one of one and one of two fragments.
    assert single["kept"].value == 0.75
    assert (loop["exact"].value, loop["f1"].value, loop["holds"].value) == (0.5, 0.75, 0.5)
    assert (loop["calls"].value, loop["calls_critic"].value, loop["rounds"].value) == (3, 2, 2)
    assert scope.metrics["single-20"]["exact"].value is None
    assert scope.stops["critic-10"] == {"sufficient": 2}


def test_differences_are_paired() -> None:
    (scope,) = report().scopes
    tokens = scope.differences["critic-10"]["tokens_3"]
    assert (tokens.value, tokens.low, tokens.high) == (20, 20, 20)
    items = scope.differences["critic-10"]["items_3"]
    assert items.value == 0.5
    assert (items.low, items.high) == (0.0, 1.0)
    assert "single-10" not in scope.differences


def test_aims_say_hit_or_missed() -> None:
    aims = {aim.what: aim for aim in report().aims}
    assert {aim.arm for aim in aims.values()} == {"critic-10"}
    values = {what: (round(aim.value.value or 0, 6), aim.hit) for what, aim in aims.items()}
    over = "questions with all gold items, over a single round of k = "
    assert values == {
        f"{over}10": (50, True),
        f"{over}20": (0, False),
        "rounds": (2, True),
        "reader tokens against a single round of k = 10": (1.2, True),
        "reader tokens saved by compression": (50, True),
        "gold-fragment recall lost by compression": (0, True),
        "calls of the language model": (3, True),
        "overhead of the orchestrator, processor time": (4, True),
    }


def test_aims_need_two_hop_questions_and_the_arms_that_they_compare_with() -> None:
    other = [msgspec.structs.replace(one, dataset="toy") for one in runs()[0].outcomes]
    assert make_report([run(BY_NAME["single-10"], *other)], SETTING, resamples=20).aims == []
    loops = {one.arm.name: one.outcomes for one in runs() if one.arm.name == "critic-10"}
    found = judge(sampled(loops, np.ones(2, bool), resamples=20), {"critic-10": False})
    assert {aim.what for aim in found} == {"rounds", "overhead of the orchestrator, processor time"}


def test_sets_are_scopes_of_their_own_and_weak_ones_apart() -> None:
    outcomes = [
        outcome("q1", (1, 1, 1)),
        outcome("q2", (1, 1, 1), dataset="nq"),
        outcome("q3", (1, 1, 1), dataset="nq", weak=True),
    ]
    assert [(name, rows.tolist()) for name, rows in scopes(outcomes)] == [
        ("all", [True, True, False]),
        ("hotpotqa", [True, False, False]),
        ("nq", [False, True, False]),
        ("nq (answers only)", [False, False, True]),
    ]


def test_a_failed_question_leaves_every_arm_and_is_named() -> None:
    failing = run(BY_NAME["oracle-10"], outcome("q1", (2, 2, 90)), outcome("q2"))
    found = report(failing)
    assert (found.compared, found.scopes[0].questions) == (1, 1)
    assert [len(one) for one in shared({r.arm.name: r.outcomes for r in [*runs(), failing]}).values()] == [1] * 5
    assert found.arms[-1].failed == {"q2": "down"}
    page = markdown(found)
    assert "- oracle-10: 1 questions\n  - q2: down" in page
    assert "1 of them worked on by every arm" in page


def test_no_question_that_every_arm_worked_on_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no question was worked on by every arm"):
        report(run(BY_NAME["oracle-10"], outcome("q1"), outcome("q2")))


def test_the_page_tells_aims_rounds_and_the_command() -> None:
    page = markdown(report())
    assert "- command: `canopy evaluate --loop`" in page
    assert "| rounds | at most 2.2 | **hit** 2.00 [2.00, 2.00] |" in page
    assert "over a single round of k = 20 | above 0 points | missed +0.0 [+0.0, +0.0] |" in page
    assert "| **hotpotqa** | critic-10 | 50.0 → 100.0 → 100.0 [100.0, 100.0] |" in page
    assert "| 100 → 120 → 120 [120, 120] | 20 [20, 20] |" in page
    assert "- critic-10-whole: the language model as critic, k = 10, by vectors, items whole" in page
    assert page.endswith("## What failed\n\nNothing.\n")


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = report()
    made.save(tmp_path)
    assert Report.load(tmp_path) == made
    newer = msgspec.structs.replace(made, version=99)
    newer.save(tmp_path)
    with pytest.raises(TrainingError, match="a report of version 99, this version reads 1"):
        Report.load(tmp_path)
    with pytest.raises(TrainingError, match="not a report that this version reads"):
        Report.load(tmp_path / "nowhere")
