"""Growth by size and over time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.growth import doublings, drift, worst_doubling

RISING = st.lists(st.integers(1, 10_000), min_size=2, max_size=8, unique=True).map(sorted)


@given(sizes=RISING, cost=st.floats(0.01, 100))
def test_linear_time_doubles_with_size(sizes: list[int], cost: float) -> None:
    for _, factor in doublings(sizes, [[cost * size] for size in sizes]):
        assert factor == pytest.approx(2.0)


@given(sizes=RISING, cost=st.floats(0.01, 100))
def test_quadratic_time_is_told_from_linear(sizes: list[int], cost: float) -> None:
    for _, factor in doublings(sizes, [[cost * size**2] for size in sizes]):
        assert factor == pytest.approx(4.0)


def test_a_step_over_several_doublings_counts_as_their_mean() -> None:
    assert doublings([1, 8], [[1.0], [27.0]]) == [(8.0, pytest.approx(3.0))]


def test_small_steps_say_nothing_about_doubling() -> None:
    assert doublings([10, 11, 22], [[1.0], [5.0], [10.0]]) == [(22.0, pytest.approx(2.0))]
    assert worst_doubling([10, 11], [[1.0], [5.0]]) == 1.0


def test_the_worst_step_counts() -> None:
    assert worst_doubling([1, 2, 4, 8], [[1.0], [1.1], [3.3], [6.6]]) == pytest.approx(3.0)


def test_a_machine_that_slows_down_between_rounds_grows_nothing() -> None:
    paces = np.array([1.0, 3.0, 1.4])
    assert doublings([1, 2, 4], [paces, 2 * paces, 4 * paces]) == [(2.0, pytest.approx(2)), (4.0, pytest.approx(2))]
    # Something else ran beside one point of one round.
    assert worst_doubling([1, 2, 4], [[1, 1, 1], [2, 5, 2], [4, 4, 4]]) == pytest.approx(2.0)


def test_warm_up_is_no_growth() -> None:
    requests = list(range(0, 1001, 10))
    values = [100.0 + min(count, 150) for count in requests]
    found = drift(requests, values)
    assert found.first == found.last == 250.0
    assert found.change == 0.0
    assert found.per_1000 == pytest.approx(0.0, abs=1e-9)


@given(slope=st.floats(-5, 5), level=st.floats(0, 1000))
def test_a_leak_shows_as_its_slope(slope: float, level: float) -> None:
    requests = np.arange(0, 10_001, 50)
    found = drift(requests.tolist(), (level + slope * requests / 1000).tolist())
    assert found.per_1000 == pytest.approx(slope, abs=1e-6)
    assert found.change == pytest.approx(slope * 8, abs=abs(slope) + 1e-6)


def test_one_sample_has_no_slope() -> None:
    found = drift([0], [7.0])
    assert (found.first, found.last, found.per_1000) == (7.0, 7.0, 0.0)
