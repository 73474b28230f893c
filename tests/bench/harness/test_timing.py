"""Interleaved timing, checked with a clock that only the contestants move."""

import gc
from collections.abc import Callable

import pytest

from anymax.bench.harness.timing import Budget, Quartiles, quartiles, time_interleaved


class Clock:
    """Time that passes only while a contestant runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contestant(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds
            self.log.append(name)

        return run

    def contestants(self, seconds: dict[str, float]) -> dict[str, Callable[[], None]]:
        return {name: self.contestant(name, each) for name, each in seconds.items()}


def test_ratios_and_milliseconds_are_those_of_the_calls():
    clock = Clock()
    runs = clock.contestants({"base": 0.002, "other": 0.005})
    timings = time_interleaved(runs, baseline="base", budget=Budget(seconds=1.0, rounds=20), clock=clock)
    assert timings["other"].ratio.median == pytest.approx(2.5)
    assert timings["other"].milliseconds.median == pytest.approx(5.0)
    assert timings["base"].ratio == Quartiles(1.0, 1.0, 1.0)
    assert timings["base"].rounds == timings["other"].rounds == 20


def test_a_machine_that_slows_down_changes_no_ratio():
    clock = Clock()

    def slowing(seconds: float) -> Callable[[], None]:
        def run() -> None:
            clock.now += seconds * (1 + clock.now // 0.1)

        return run

    runs = {"base": slowing(0.002), "other": slowing(0.004)}
    timing = time_interleaved(runs, baseline="base", budget=Budget(seconds=1.0, rounds=30), clock=clock)["other"]
    assert timing.ratio.median == pytest.approx(2.0)
    assert timing.milliseconds.high > timing.milliseconds.low


def test_every_round_has_each_contestant_once_in_changing_order():
    clock = Clock()
    runs = clock.contestants({"a": 0.2, "b": 0.2, "c": 0.2})
    time_interleaved(runs, baseline="a", budget=Budget(seconds=60.0, rounds=10), clock=clock)
    turns = clock.log[3:]
    orders = [tuple(turns[start : start + 3]) for start in range(0, len(turns), 3)]
    assert len(orders) == 10 and all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) > 1


def test_a_slow_contestant_sits_out_rounds_but_never_falls_below_the_least():
    clock = Clock()
    runs = clock.contestants({"base": 0.01, "slow": 2.0, "slower": 100.0})
    budget = Budget(seconds=30.0, rounds=50, least=3)
    timings = time_interleaved(runs, baseline="base", budget=budget, clock=clock)
    assert timings["slow"].rounds in range(3, 6)
    assert timings["slower"].rounds == 3
    assert timings["base"].rounds == 50
    assert timings["slower"].ratio.median == pytest.approx(10_000)


def test_the_budget_ends_the_rounds_when_contestants_turn_slow():
    clock = Clock()
    seconds = {"base": 0.001}

    def run() -> None:
        clock.now += seconds["base"]
        if clock.now > 0.1:
            seconds["base"] = 1.0

    timing = time_interleaved({"base": run}, baseline="base", budget=Budget(seconds=1.0, least=2), clock=clock)["base"]
    assert timing.rounds < 110


def test_fast_contestants_are_called_several_times_in_a_turn():
    clock = Clock()
    runs = clock.contestants({"base": 1e-5, "other": 2e-5})
    budget = Budget(seconds=1.0, rounds=2, least=2, turn_seconds=1e-3)
    timings = time_interleaved(runs, baseline="base", budget=budget, clock=clock)
    assert timings["base"].milliseconds.median == pytest.approx(0.01)
    assert timings["other"].ratio.median == pytest.approx(2.0)
    assert clock.log.count("base") > 200


def test_garbage_is_not_collected_while_timing_and_is_afterwards():
    seen = []
    time_interleaved({"base": lambda: seen.append(gc.isenabled())}, baseline="base", budget=Budget(0.001, 2, 2))
    assert seen and not any(seen)
    assert gc.isenabled()


def test_a_failing_contestant_leaves_garbage_collection_on():
    def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        time_interleaved({"base": fail}, baseline="base", budget=Budget(1.0))
    assert gc.isenabled()


def test_quartiles_of_a_known_sample():
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == Quartiles(2.0, 3.0, 4.0)


def test_half_the_time_is_twice_the_speed():
    assert Quartiles(0.4, 0.5, 1.0).inverse == Quartiles(1.0, 2.0, 2.5)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"baseline must be one of a, got 'b'"):
        time_interleaved({"a": lambda: None}, baseline="b", budget=Budget(1.0))
    with pytest.raises(ValueError, match=r"least must be between 2.* and rounds=5, got 6"):
        Budget(1.0, rounds=5, least=6)
