from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from evaluation_toys import ToySource, asked, passage, scored, toy_questions

from canopy_backend.errors import TrainingError
from canopy_training.data import first_of_each
from canopy_training.evaluation.figures import draw
from canopy_training.evaluation.metrics import count
from canopy_training.evaluation.report import REPORT_FILE, Report
from canopy_training.evaluation.run import run_evaluation
from canopy_training.evaluation.scoring import locate_all, score_questions, shared
from canopy_training.evaluation.summary import scopes, summarise
from canopy_training.evaluation.tables import markdown, table

# Four sentences, gold is the third: the walk goes to the right half and its first leaf, or to the left half.
RIGHT = (0.5, 0.4, 0.6, 0.3, 0.2, 0.7, 0.5)
WRONG = (0.5, 0.6, 0.4, 0.7, 0.2, 0.7, 0.5)


def report_of(*sources: ToySource) -> Report:
    return run_evaluation(toy_questions(), sources, split="dev", command="canopy evaluate", seed=1, resamples=50)


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(ToySource({"a": WRONG}, "frozen"), ToySource({"a": RIGHT}, "tuned"))


def test_before_and_after_are_told_with_their_difference(report: Report) -> None:
    whole = report.scopes[0]
    assert (whole.name, whole.kind, whole.questions, whole.items) == ("all", "all", 2, 5)
    accuracy = {name: metrics["decision_accuracy"].value for name, metrics in whole.metrics.items()}
    assert accuracy == {"frozen": 0.0, "tuned": 1.0}
    assert whole.differences["decision_accuracy"].value == 1
    assert whole.differences["recall"].value == 1
    assert whole.counts["tuned"]["instances"] == 4


def test_parts_are_the_pool_modalities_data_sets_and_weak_gold_apart(report: Report) -> None:
    assert [(scope.name, scope.kind) for scope in report.scopes] == [
        ("all", "all"),
        ("image", "modality"),
        ("text", "modality"),
        ("one", "dataset"),
        ("one, image", "dataset and modality"),
        ("one, text", "dataset and modality"),
        ("all (answers only)", "all"),
        ("text (answers only)", "modality"),
        ("two (answers only)", "dataset"),
    ]


def test_what_is_left_out_is_named(report: Report) -> None:
    assert report.lost == ["one: question 'q2', item 'b': no place for its gold (paragraph)"]
    assert report.systems[0].left_out_queries == {"What is too long?": "too long"}
    page = markdown(report)
    assert "What is too long?: too long" in page
    assert "no place for its gold (paragraph)" in page


def test_a_gold_item_without_a_place_counts_as_gold_and_decides_nothing(report: Report) -> None:
    counts = report.scopes[0].counts["tuned"]
    assert counts["splittable_gold"] == 3
    assert counts["gold"] == 2


def test_systems_are_compared_on_what_both_could_encode() -> None:
    found = report_of(ToySource({}, "frozen", unknown=frozenset("b")), ToySource({}, "tuned"))
    assert found.items == 4  # twice a, once p, once c
    assert found.systems[0].left_out_items == {"b": "too large"}
    assert found.systems[0].encoded == 3
    assert "too large" in markdown(found)


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no question could be encoded"):
        report_of(ToySource({}, unknown=frozenset("abcp")))


def test_equal_items_are_encoded_once() -> None:
    done: list[int] = []
    questions = toy_questions()
    found = score_questions(ToySource({}), questions, locate_all(questions)[0], done.append)
    assert sum(done) == 4
    assert [[item.item_id for item in question.items] for question in found] == [["a", "b"], ["a", "b", "p"], ["c"]]
    assert [question.place for question in found] == [0, 1, 2]


def test_another_cut_of_an_item_is_refused() -> None:
    class Odd(ToySource):
        def node_vectors(self, items):
            return super().node_vectors([passage(item.id, 3) for item in items])

    questions = toy_questions()[:1]
    with pytest.raises(TrainingError, match="into 3 fragments, this version into 4"):
        score_questions(Odd({}), questions, locate_all(questions)[0])


def test_shared_keeps_the_order_and_drops_empty_questions() -> None:
    one, two = scored([0.5], 1, item_id="x"), scored([0.5], 1, item_id="y")
    first, second = shared([[asked(one, two), asked(one, place=1)], [asked(two)]])
    assert [[item.item_id for item in question.items] for question in first] == [["y"]]
    assert [question.place for question in second] == [0]


def test_a_report_survives_its_file(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    assert Report.load(tmp_path) == report
    raw = msgspec.json.decode((tmp_path / REPORT_FILE).read_bytes())
    (tmp_path / REPORT_FILE).write_bytes(msgspec.json.encode({**raw, "version": 0}))
    with pytest.raises(TrainingError, match="version 0"):
        Report.load(tmp_path)
    (tmp_path / REPORT_FILE).write_bytes(b"{}")
    with pytest.raises(TrainingError, match="not a report"):
        Report.load(tmp_path)


def test_the_same_seed_gives_the_same_figures(report: Report) -> None:
    again = report_of(ToySource({"a": WRONG}, "frozen"), ToySource({"a": RIGHT}, "tuned"))
    assert again.scopes == report.scopes
    assert again.sweeps == report.sweeps


def test_the_page_holds_every_part_and_selector(report: Report) -> None:
    page = markdown(report)
    assert "| **all** | tuned | 2 | 5 | 4 | 100.0 [100.0, 100.0] |" in page
    assert "| **all** | difference |" in page
    assert {"| top_of_question | frozen |", "| canopy | tuned |"} <= {
        line[: line.index("|", line.index("|", 2) + 1) + 1] for line in page.splitlines() if line.startswith("| ")
    }
    assert "all, gold items only" in page
    assert table(["a", "b"], [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"


def test_figures_are_small_png_files(report: Report, tmp_path: Path) -> None:
    files = draw(report, tmp_path)
    assert len(files) == 3
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size < 150_000


def test_one_system_has_no_difference(tmp_path: Path) -> None:
    alone = report_of(ToySource({}, "frozen"))
    assert alone.scopes[0].differences == {}
    assert "| difference |" not in markdown(alone)
    draw(alone, tmp_path)


def test_only_weak_gold_makes_a_pool_of_its_own() -> None:
    counts = count([asked(scored([0.5, 0.6, 0.4], 2, [0]), weak=True)])
    assert [name for name, _, _ in scopes(counts)] == [
        "all (answers only)",
        "text (answers only)",
        "toy (answers only)",
    ]
    assert summarise({"a": counts}, resamples=5)[0].metrics["a"]["recall"].value == 1


def test_a_limit_takes_the_first_of_each_data_set() -> None:
    assert [question.id for question in first_of_each(toy_questions(), 1)] == ["q1", "q3"]
    assert len(first_of_each(toy_questions(), None)) == 4


def test_scores_are_the_product_of_vectors() -> None:
    questions = toy_questions()[:1]
    (found,) = score_questions(ToySource({"a": RIGHT}), questions, locate_all(questions)[0])
    assert found.items[0].scores == pytest.approx(np.array(RIGHT), abs=1e-3)
    assert found.items[0].gold is not None
    assert found.items[0].gold.tolist() == [False, False, True, False]
