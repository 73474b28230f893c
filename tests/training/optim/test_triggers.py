"""Triggers: the published criterion on given histories, and epochs."""

import math
import random

import pytest

from anymax.training import AtEpoch, NonMonotone


def first_due(window: int, goals: list[float]) -> int | None:
    """The evaluation, from 1, at which it fires first."""
    due = (number for number in range(len(goals) + 1) if NonMonotone(window).is_due(goals[:number], epochs=0))
    return next(due, None)


@pytest.mark.parametrize(
    ("window", "goals", "expected"),
    [
        (3, [10, 9, 8, 7, 11], 5),
        (3, [10, 9, 8, 7, 6, 5, 4], None),
        (3, [0.0, 0.1, 0.2], None),
        # What is worse than the last three alone does not count.
        (3, [10, 9, 8, 6, 6, 6, 7.5], None),
        (3, [10, 9, 6, 6, 6, 7.5, 7], 7),
        (5, [1.0] * 6 + [2.0], 7),
        (1, [3, 2, 2.5, 2.1, 2.2], 4),
        (5, [], None),
    ],
)
def test_it_fires_when_an_evaluation_is_worse_than_the_best_before_the_window(window, goals, expected):
    assert first_due(window, goals) == expected


@pytest.mark.parametrize("window", [1, 2, 5])
def test_it_fires_where_a_loop_over_growing_histories_does(window: int):
    draw = random.Random(window)
    for _ in range(50):
        goals = [100 / (number + 1) + draw.gauss(0, 2) for number in range(40)]
        kept: list[float] = []
        expected = None
        for number, goal in enumerate(goals, start=1):
            if len(kept) > window and goal > min(kept[: len(kept) - window]):
                expected = number
                break
            kept.append(goal)
        assert first_due(window, goals) == expected


def test_an_undefined_number_is_worse_than_any_other():
    assert NonMonotone(1).is_due([3.0, 2.0, math.nan], epochs=0)
    assert NonMonotone(1).is_due([math.nan, 2.0, 2.0, 3.0], epochs=0)
    assert not NonMonotone(1).is_due([math.nan, math.nan, 2.0], epochs=0)


def test_an_epoch_comes_and_stays():
    assert [AtEpoch(2).is_due([], epochs) for epochs in range(4)] == [False, False, True, True]
    assert AtEpoch(0).is_due([], 0)


def test_what_never_comes_is_refused():
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        NonMonotone(0)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        AtEpoch(-1)
