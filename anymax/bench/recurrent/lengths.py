"""Batches of drawn lengths: what steps cost per word where hardly two of them are equally long.

Nothing is compiled for a length, but torch's recurrence on the CPU prepares itself once for every shape it meets.
"""

import random
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anymax.bench.harness.comparison import Comparison, Entry
from anymax.bench.harness.timing import Timing, quartiles
from anymax.bench.recurrent.trainee import RecurrentTrainee
from anymax.bench.training.trainee import Pair

UNIT = "ms per 1000 words"
KNOWN, NEW = "a length met before", "the same length, met for the first time"
FIXED, DRAWN = "the mean length", "drawn lengths"


def first_meetings(job: str, trainee: RecurrentTrainee, batches: Sequence[Pair]) -> Comparison:
    """The first step of each length against the next one, of the same batch.

    Args:
        batches: one for each of at least two lengths that the process has not met yet.
    """
    pairs = [(_step(trainee, batch), _step(trainee, batch)) for batch in batches]
    new, known = ([_per_1000_words([step]) for step in steps] for steps in zip(*pairs, strict=True))
    return Comparison(job, (_entry(KNOWN, known, known), _entry(NEW, new, known)), unit=UNIT)


def drawn_against_mean(
    job: str, trainee: RecurrentTrainee, lengths: Sequence[int], batch_of: Mapping[int, Pair], *, together: int
) -> Comparison:
    """Steps of drawn lengths against as many of their mean length, rounded.

    Args:
        batch_of: a batch for each of the lengths and for their mean.
        together: the number of steps of either kind that make one ratio; the remainder is dropped.
    """
    mean = mean_length(lengths)
    trainee.step(*batch_of[mean])
    shuffle = random.Random(0).shuffle
    rounds: dict[str, list[float]] = {FIXED: [], DRAWN: []}
    for start in range(0, len(lengths) - together + 1, together):
        spent: dict[str, list[Spent]] = {FIXED: [], DRAWN: []}
        # Step by step in turn, so that both kinds share the machine's moods.
        for length in lengths[start : start + together]:
            turns = [(FIXED, mean), (DRAWN, length)]
            shuffle(turns)
            for name, own in turns:
                spent[name].append(_step(trainee, batch_of[own]))
        for name, steps in spent.items():
            rounds[name].append(_per_1000_words(steps))
    entries = [_entry(name, own, rounds[FIXED]) for name, own in rounds.items()]
    return Comparison(job, tuple(entries), unit=UNIT)


def mean_length(lengths: Sequence[int]) -> int:
    return round(sum(lengths) / len(lengths))


class Spent(NamedTuple):
    """What a step took, and for how many words."""

    seconds: float
    words: int


def _step(trainee: RecurrentTrainee, batch: Pair) -> Spent:
    start = time.perf_counter()
    trainee.step(*batch)
    return Spent(time.perf_counter() - start, batch[1].numel())


def _per_1000_words(steps: Sequence[Spent]) -> float:
    """Milliseconds."""
    return 1e6 * sum(step.seconds for step in steps) / sum(step.words for step in steps)


def _entry(name: str, own: Sequence[float], baseline: Sequence[float]) -> Entry:
    ratios = [mine / theirs for mine, theirs in zip(own, baseline, strict=True)]
    return Entry(name, Timing(quartiles(list(own)), quartiles(ratios), len(own)))
