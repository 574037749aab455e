"""The loss has its known values; a run learns a toy set in seconds, and a killed one ends as an unbroken one."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from question_toys import question, text_question

from canopy_backend.errors import TrainingError
from canopy_export.source import Source
from canopy_training.checkpoint import STATE_FILE
from canopy_training.loss import listwise
from canopy_training.settings import TrainSettings
from canopy_training.train import Progress, Trained, train

SETTINGS = TrainSettings(
    rank=8, alpha=16, learning_rate=1e-2, epochs=4, step_tokens=1024, check_every=12, precision="fp32", seed=3,
    dropout=0.05,
)  # fmt: skip


def loss_of(scores: list[float], pairs: list[tuple[int, int]], scale: float = 20.0) -> float:
    owner = torch.zeros(len(pairs), dtype=torch.int64)
    return float(listwise(torch.tensor(scores), torch.tensor(pairs), owner, 1, scale, torch.ones(len(pairs)))[0])


def test_known_values() -> None:
    assert loss_of([0.60, 0.50], [(0, 1)]) == pytest.approx(0.126928, abs=1e-6)
    assert loss_of([0.50, 0.40, 0.55], [(0, 1), (0, 2)]) == pytest.approx(1.349012, abs=1e-5)


def test_a_weight_multiplies_its_pair() -> None:
    pairs, owner = torch.tensor([[0, 1], [0, 2]]), torch.zeros(2, dtype=torch.int64)
    value = listwise(torch.tensor([0.5, 0.4, 0.45]), pairs, owner, 1, 20.0, torch.tensor([3.0, 1.0]))
    assert float(value) == pytest.approx(math.log(1 + 3 * math.exp(-2) + math.exp(-1)))


def test_no_margin_overflows() -> None:
    assert loss_of([-1.0, 1.0], [(0, 1)], scale=1000.0) == pytest.approx(2000.0)
    assert loss_of([1.0, -1.0], [(0, 1)], scale=1000.0) == 0.0


@given(st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4))
def test_every_instance_has_its_own_sum(scores: list[float]) -> None:
    pairs = [(0, 1), (2, 3), (3, 0)]
    values = listwise(
        torch.tensor(scores), torch.tensor(pairs), torch.tensor([0, 1, 1]), 2, 20.0, torch.ones(3)
    ).tolist()
    for value, mine in zip(values, (pairs[:1], pairs[1:]), strict=True):
        terms = sum(math.exp(20 * (scores[b] - scores[a])) for a, b in mine)
        assert value == pytest.approx(math.log1p(terms), rel=1e-4, abs=1e-5)


def run(source: Source, settings: TrainSettings = SETTINGS, **options: object) -> Trained:
    questions = [question(seed) for seed in range(80)]
    dev = [question(seed) for seed in range(500, 530)]
    return train(source, settings, questions, dev, **options)


@pytest.fixture(scope="module")
def unbroken(source: Source) -> Trained:
    return run(source)


@pytest.fixture(scope="module")
def untrained(source: Source) -> Trained:
    return run(source, msgspec.structs.replace(SETTINGS, epochs=1, learning_rate=1e-9))


def test_the_loss_falls_and_decisions_turn_right(untrained: Trained, unbroken: Trained) -> None:
    assert untrained.history[-1]["dev"] < 0.6
    assert unbroken.history[-1]["dev"] > 0.95
    assert unbroken.history[-1]["loss"] < 0.3 * untrained.history[-1]["loss"]
    assert unbroken.history[-1]["step"] == unbroken.steps
    assert unbroken.tally.items == 80


def test_only_the_adapter_learns(unbroken: Trained) -> None:
    names = list(unbroken.model.state())
    assert names
    assert all("lora_" in name for name in names)
    assert not any("pooler" in name for name in names)


class Killed(Exception):
    pass


def test_a_killed_run_ends_as_an_unbroken_one(source: Source, unbroken: Trained, tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.step == 20:
            raise Killed

    with pytest.raises(Killed):
        run(source, state_folder=tmp_path, fingerprint="a", report=kill)
    steps: list[int] = []
    resumed = run(source, state_folder=tmp_path, fingerprint="a", report=lambda p: steps.append(p.step))
    assert steps[0] == 13  # from the last check, not from the start
    for name, weight in unbroken.model.state().items():
        assert torch.equal(weight, resumed.model.state()[name]), name
    assert resumed.history == unbroken.history


def test_the_state_of_another_run_or_a_damaged_one_is_refused(source: Source, tmp_path: Path) -> None:
    short = TrainSettings(rank=4, epochs=1, step_tokens=4096, precision="fp32")
    run(source, short, state_folder=tmp_path, fingerprint="a")
    with pytest.raises(TrainingError, match="other settings"):
        run(source, short, state_folder=tmp_path, fingerprint="b")
    (tmp_path / STATE_FILE).write_bytes(b"x" * 100)
    with pytest.raises(TrainingError, match="cannot be read"):
        run(source, short, state_folder=tmp_path, fingerprint="a")


def test_runs_of_two_precisions_share_a_process(source: Source, untrained: Trained) -> None:
    half = run(source, msgspec.structs.replace(SETTINGS, epochs=1, learning_rate=1e-9, precision="bf16"))
    assert (half.precision, untrained.precision) == ("bf16", "fp32")
    assert half.history[-1]["loss"] != untrained.history[-1]["loss"]
    assert half.history[-1]["loss"] == pytest.approx(untrained.history[-1]["loss"], rel=0.02)


def test_nothing_to_learn_is_an_error(source: Source) -> None:
    with pytest.raises(TrainingError, match=r"no decision to learn from.*1 gold items have one fragment"):
        train(source, SETTINGS, [text_question("n1 is near.", (0, 3))], [])


def test_a_question_longer_than_the_window_is_named(source: Source) -> None:
    case = msgspec.structs.replace(text_question("n1 is near. n2 is far.", (0, 3)), question="n1 " * 80)
    with pytest.raises(TrainingError, match=r"question 'qx': \d+ tokens are over the 64 of tiny"):
        train(source, SETTINGS, [case], [])


def test_a_run_starts_from_an_adapter_and_refuses_one_of_another_rank(
    source: Source, untrained: Trained, unbroken: Trained, tmp_path: Path
) -> None:
    unbroken.model.save(tmp_path, "tiny")
    short = msgspec.structs.replace(SETTINGS, epochs=1, learning_rate=1e-9)
    further = run(source, short, start=tmp_path)
    assert further.history[-1]["loss"] < 0.3 * untrained.history[-1]["loss"]
    assert further.history[-1]["dev"] == pytest.approx(unbroken.history[-1]["dev"], abs=0.03)
    with pytest.raises(TrainingError, match="start from it with --rank 8 --alpha 16"):
        run(source, msgspec.structs.replace(short, rank=4), start=tmp_path)
    with pytest.raises(TrainingError, match="alpha 16, not 8 and 8"):  # would start at half its strength
        run(source, msgspec.structs.replace(short, alpha=8), start=tmp_path)
    with pytest.raises(TrainingError, match="no adapter here"):
        run(source, short, start=tmp_path / "absent")
