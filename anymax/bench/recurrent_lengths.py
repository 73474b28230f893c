"""Batches of drawn lengths: what steps cost per word where hardly two of them are equally long.

Nothing is compiled for a length, but torch's recurrence on the CPU prepares itself once for every shape it meets.
"""

import random
import time
from collections.abc import Mapping, Sequence

from anymax.bench.recurrent_report import Comparison, Entry
from anymax.bench.recurrent_trainee import RecurrentTrainee
from anymax.bench.timing import Timing, quartiles
from anymax.bench.trainee import Pair

UNIT = "ms per 1000 words"
KNOWN, NEW = "a length met before", "the same length, met for the first time"
FIXED, DRAWN = "the mean length", "drawn lengths"


def first_meetings(job: str, trainee: RecurrentTrainee, batches: Sequence[Pair]) -> Comparison:
    """The first step of each length against the next one, of the same batch.

    Args:
        batches: one for each of at least two lengths that the process has not met yet.
    """
    pairs = [(_per_word(trainee, [batch]), _per_word(trainee, [batch])) for batch in batches]
    new, known = zip(*pairs, strict=True)
    return Comparison(job, (_entry(KNOWN, known, known), _entry(NEW, new, known)), unit=UNIT)


def drawn_against_mean(
    job: str, trainee: RecurrentTrainee, lengths: Sequence[int], batch_of: Mapping[int, Pair], *, together: int
) -> Comparison:
    """Steps of drawn lengths against as many of their mean length, rounded.

    Args:
        batch_of: a batch for each of the lengths and for their mean.
        together: so many steps of either kind make one ratio; what is left over is left out.
    """
    mean = mean_length(lengths)
    trainee.step(*batch_of[mean])
    shuffle = random.Random(0).shuffle
    rounds: list[dict[str, float]] = []
    for start in range(0, len(lengths) - together + 1, together):
        turns = {FIXED: [mean] * together, DRAWN: lengths[start : start + together]}
        names = list(turns)
        shuffle(names)
        rounds.append({name: _per_word(trainee, [batch_of[length] for length in turns[name]]) for name in names})
    fixed, drawn = ([one[name] for one in rounds] for name in (FIXED, DRAWN))
    return Comparison(job, (_entry(FIXED, fixed, fixed), _entry(DRAWN, drawn, fixed)), unit=UNIT)


def mean_length(lengths: Sequence[int]) -> int:
    return round(sum(lengths) / len(lengths))


def _per_word(trainee: RecurrentTrainee, batches: Sequence[Pair]) -> float:
    """Milliseconds for 1000 words of steps on the batches."""
    start = time.perf_counter()
    for ids, target in batches:
        trainee.step(ids, target)
    seconds = time.perf_counter() - start
    return 1e6 * seconds / sum(target.numel() for _, target in batches)


def _entry(name: str, own: Sequence[float], baseline: Sequence[float]) -> Entry:
    ratios = [mine / theirs for mine, theirs in zip(own, baseline, strict=True)]
    return Entry(name, Timing(quartiles(list(own)), quartiles(ratios), len(own)))
