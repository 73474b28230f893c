"""Interleaved timing: every round times the contestants one after another, so that they share the machine's moods.

A ratio is taken within its round and the median over the rounds is reported: a slow second, a busy neighbour or a
change of clock speed hits numerator and denominator alike.
"""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Budget:
    """How long a timing may take.

    Args:
        seconds: for all contestants together, warm-up aside. Each gets an equal share; a slow one may overdraw its own
            for the sake of `least`, and the others keep theirs.
        rounds: the most rounds there will be.
        least: every contestant takes part in this many rounds, whatever it costs.
        turn_seconds: a contestant faster than this is called several times in its turn.
    """

    seconds: float
    rounds: int = 200
    least: int = 3
    turn_seconds: float = 1e-3

    def __post_init__(self) -> None:
        if not 2 <= self.least <= self.rounds:
            raise ValueError(
                f"least must be between 2, which quartiles need, and rounds={self.rounds}, got {self.least}"
            )


@dataclass(frozen=True)
class Quartiles:
    low: float
    median: float
    high: float

    @property
    def inverse(self) -> "Quartiles":
        """Of one over the values."""
        return Quartiles(1 / self.high, 1 / self.median, 1 / self.low)


@dataclass(frozen=True)
class Timing:
    """One contestant's call: its milliseconds, and its ratio to the baseline's call of the same round."""

    milliseconds: Quartiles
    ratio: Quartiles
    rounds: int


def time_interleaved(
    contestants: Mapping[str, Run], *, baseline: str, budget: Budget, clock: Clock = time.perf_counter
) -> dict[str, Timing]:
    """Time every contestant against the baseline, in rounds of shuffled order.

    A contestant too slow for its share of the budget sits out some rounds, evenly spread; the baseline plays in all.
    """
    if baseline not in contestants:
        raise ValueError(f"baseline must be one of {', '.join(contestants)}, got {baseline!r}")
    with _no_garbage_collection():
        cost = {name: _warm_up(run, clock) for name, run in contestants.items()}
        calls = {name: max(1, math.ceil(budget.turn_seconds / cost[name])) for name in contestants}
        share = budget.seconds / len(contestants)
        plan = {name: _planned_rounds(cost[name] * calls[name], share, budget) for name in contestants}
        rounds: list[dict[str, float]] = []
        spent, played = dict.fromkeys(contestants, 0.0), dict.fromkeys(contestants, 0)
        for names in _line_ups(plan, baseline):
            due = {name for name in names if played[name] < budget.least or spent[name] < share}
            if not due:
                continue
            players = [name for name in names if name in due or name == baseline]
            rounds.append({name: _turn(contestants[name], calls[name], clock) for name in players})
            for name in players:
                played[name] += 1
                spent[name] += rounds[-1][name] * calls[name]
    return {name: _summary(name, baseline, rounds) for name in contestants}


def quartiles(values: list[float]) -> Quartiles:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(low, median, high)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _warm_up(run: Run, clock: Clock) -> float:
    """Seconds of one call; a first call, which allocates and loads, does not count unless it is slow in any case."""
    first = _turn(run, 1, clock)
    if first > 0.1:
        return first
    num_calls = max(1, min(100, math.ceil(0.01 / max(first, 1e-7))))
    return max(_turn(run, num_calls, clock), 1e-7)


def _turn(run: Run, num_calls: int, clock: Clock) -> float:
    """Seconds per call."""
    start = clock()
    for _ in range(num_calls):
        run()
    return (clock() - start) / num_calls


def _planned_rounds(turn_seconds: float, share: float, budget: Budget) -> int:
    return min(max(int(share / turn_seconds), budget.least), budget.rounds)


def _line_ups(plan: dict[str, int], baseline: str) -> Iterator[list[str]]:
    """Who is to play in each round, in which order."""
    shuffle = random.Random(0).shuffle
    num_rounds = max(plan.values())
    for index in range(num_rounds):
        names = [name for name in plan if name == baseline or _takes_part(index, plan[name], num_rounds)]
        shuffle(names)
        yield names


def _takes_part(index: int, planned: int, num_rounds: int) -> bool:
    """Whether round `index` is one of the `planned` that lie evenly among `num_rounds`."""
    return (index + 1) * planned // num_rounds > index * planned // num_rounds


def _summary(name: str, baseline: str, rounds: list[dict[str, float]]) -> Timing:
    own = [turn for turn in rounds if name in turn]
    milliseconds = quartiles([turn[name] * 1e3 for turn in own])
    return Timing(milliseconds, quartiles([turn[name] / turn[baseline] for turn in own]), len(own))
