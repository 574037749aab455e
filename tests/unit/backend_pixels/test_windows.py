"""Which frames of a clip are wanted, and from which key frame they are decoded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.pixels.windows import Run, plan_runs, window_starts


@pytest.mark.parametrize(
    ("duration_s", "most", "expected"),
    [
        (0.1, 32, [0.0]),
        (10, 32, [0.0]),
        (11, 32, [0.0]),
        (11.5, 32, [0.0, 10.0]),
        (65, 32, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        (320, 32, [10.0 * place for place in range(32)]),
        (640, 32, [20.0 * place for place in range(32)]),
        (100, 4, [0.0, 25.0, 50.0, 75.0]),
    ],
)
def test_windows_are_10_s_long_or_as_many_as_allowed(duration_s: float, most: int, expected: list[float]) -> None:
    assert window_starts(duration_s, most) == expected


def test_a_window_with_a_key_frame_costs_that_frame_alone() -> None:
    assert plan_runs([0, 4, 8, 12, 16, 20], 25, 32) == [Run(0, [0]), Run(3, [12]), Run(5, [20])]


def test_windows_without_one_hang_on_the_last_before_them() -> None:
    assert plan_runs([0.0], 35, 32) == [Run(0, [0.0, 10.0, 20.0, 30.0])]
    assert plan_runs([0.0, 7.0, 31.0], 40, 32) == [Run(0, [0.0]), Run(1, [10.0, 20.0]), Run(2, [31.0])]


def test_nothing_is_wanted_before_the_first_key_frame() -> None:
    assert plan_runs([12.0], 25, 32) == [Run(0, [12.0, 20.0])]
    assert plan_runs([-2.0], 15, 32) == [Run(0, [0.0, 10.0])]
    assert plan_runs([], 25, 32) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 900), min_size=1, max_size=60).map(sorted), st.floats(0.1, 1000), st.integers(1, 40))
def test_times_ascend_and_each_run_begins_before_its_first(keys: list[float], duration_s: float, most: int) -> None:
    runs = plan_runs(keys, duration_s, most)
    times = [at_s for run in runs for at_s in run.at_s]
    assert len(times) <= most
    assert times == sorted(set(times))
    assert all(keys[run.key] <= run.at_s[0] for run in runs)
    # No key frame lies between a run's own and what it leads to, which would be a shorter way.
    assert all(not any(keys[run.key] < key <= run.at_s[-1] for key in keys) for run in runs if len(run.at_s) == 1)
