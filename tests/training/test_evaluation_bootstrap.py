from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_training.evaluation import bootstrap
from canopy_training.evaluation.bootstrap import draws, estimates, resample


def test_the_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(1).normal(3, 2, (400, 1))
    value, samples = resample(values + 10, np.ones_like(values), resamples=4000)
    (found,) = estimates(value, samples)
    error = values.std() / 20
    assert found.value == pytest.approx(values.mean() + 10)
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.1 * error)


def test_a_share_of_two_questions_has_the_resamples_that_two_draws_can_have() -> None:
    _, samples = resample(np.array([[1.0], [0.0]]), np.array([[1.0], [3.0]]), resamples=2000)
    values, counts = np.unique(samples, return_counts=True)
    assert values.tolist() == [0, 0.25, 1]
    assert counts / 2000 == pytest.approx([0.25, 0.5, 0.25], abs=0.04)


def test_pairs_share_their_draws_so_that_a_constant_difference_has_no_width() -> None:
    values = np.random.default_rng(0).random((50, 1))
    ones = np.ones_like(values)
    (before, first), (after, second) = (resample(one, ones, resamples=300, seed=5) for one in (values, values + 0.1))
    (found,) = estimates(after - before, second - first)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))


def test_seeds_decide() -> None:
    values = np.random.default_rng(0).random((30, 2))
    one, same, other = (resample(values, values + 1, resamples=50, seed=seed)[1] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_chunks_do_not_change_the_number_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_CHUNK", 70)
    parts = list(draws(10, 25, 0))
    assert [part.shape for part in parts] == [(7, 10), (7, 10), (7, 10), (4, 10)]
    assert all((part.sum(axis=1) == 10).all() for part in parts)


def test_what_has_nothing_to_count_has_no_value() -> None:
    value, samples = resample(np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), resamples=10)
    empty, full = estimates(value, samples)
    assert (empty.value, empty.low, empty.high) == (None, None, None)
    assert (full.value, full.low, full.high) == (0.5, 0.5, 0.5)
    (none,) = estimates(*resample(np.zeros((0, 1)), np.zeros((0, 1)), resamples=10))
    assert none.value is None


def test_resamples_without_the_rare_question_do_not_count() -> None:
    over, below = np.array([[1.0], [0.0], [0.0]]), np.array([[2.0], [0.0], [0.0]])
    (found,) = estimates(*resample(over, below, resamples=200))
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_an_interval_lies_within_the_values(values: list[float]) -> None:
    column = np.array(values)[:, None]
    (found,) = estimates(*resample(column, np.ones_like(column), resamples=60))
    assert found.low is not None
    assert found.high is not None
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
