"""Learning rates: published values, the ends of warm-ups and runs, and what is refused."""

import math
from itertools import pairwise

import pytest

from anymax.training import Constant, Cosine, CosineCycles, InverseSquareRoot, Linear

WIKITEXT_103 = CosineCycles(16_000, period=18_000, growth=2.0, shrink=0.75, minimum=1e-5)
BILLION_WORD = CosineCycles(16_000, period=137_000, growth=2.0, shrink=0.6, minimum=1e-5)


@pytest.mark.parametrize(
    ("schedule", "tops"),
    [
        (WIKITEXT_103, {16_000: 1.0, 34_000: 0.75, 70_000: 0.5625, 142_000: 0.421875, 286_000: 0.31640625}),
        (BILLION_WORD, {16_000: 1.0, 153_000: 0.6, 427_000: 0.36, 975_000: 0.216}),
    ],
)
def test_cycles_begin_and_end_where_they_were_published(schedule: CosineCycles, tops: dict[int, float]):
    for step, top in tops.items():
        assert schedule.factor(step, 10**6) == pytest.approx(top, rel=1e-12)
    for i, step in enumerate([*tops][1:]):
        assert schedule.factor(step - 1, 10**6) == pytest.approx(1e-5 * schedule.shrink**i, rel=0.1)


def test_cycles_agree_with_the_published_closed_form():
    period, growth, shrink, minimum = 18_000, 2.0, 0.75, 1e-5
    for step in range(0, 270_000, 777):
        i = math.floor(math.log(1 - step / period * (1 - growth), growth))
        length = growth**i * period
        done = step - (1 - growth**i) / (1 - growth) * period
        low, high = minimum * shrink**i, shrink**i
        expected = low + 0.5 * (high - low) * (1 + math.cos(math.pi * done / length))
        assert WIKITEXT_103.factor(16_000 + step, 286_000) == pytest.approx(expected, rel=1e-9)


def test_cycles_warm_up_in_a_line_from_where_they_are_reported_to():
    assert WIKITEXT_103.factor(0, 286_000) == 1e-7
    assert WIKITEXT_103.factor(8_000, 286_000) == pytest.approx((1 + 1e-7) / 2)


def test_cycles_of_one_length_repeat():
    schedule = CosineCycles(period=4, growth=1.0, shrink=0.5, minimum=0.0)
    first = [schedule.factor(step, 100) for step in range(4)]
    for cycle in range(1, 4):
        later = [schedule.factor(4 * cycle + step, 100) for step in range(4)]
        assert later == pytest.approx([0.5**cycle * factor for factor in first])


def test_a_cosine_falls_to_its_minimum_by_the_end_of_the_run():
    schedule = Cosine(0.1, minimum=0.1)
    factors = [schedule.factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0 and factors[55] == pytest.approx(0.55)
    assert 0.1 < factors[-1] < 0.1005 and schedule.factor(100, 100) == pytest.approx(0.1)
    assert all(before >= after for before, after in pairwise(factors[9:]))


def test_a_cosine_fits_a_run_of_any_length():
    for warmup in (0.0, 0.06, 0.5, 1.0):
        for total in (1, 2, 7, 100):
            Cosine(warmup).check_fits(total)
            assert all(0 < Cosine(warmup).factor(step, total) <= 1 for step in range(total))


def test_a_constant_rate_stays_after_its_warm_up():
    assert [Constant(4).factor(step, 9) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert Constant().factor(0, 9) == 1.0


def test_the_inverse_square_root_is_that_of_attention_is_all_you_need():
    schedule = InverseSquareRoot(400)
    for step in (1, 7, 399, 400, 401, 10_000):
        published = min(step**-0.5, step * 400**-1.5) * 400**0.5
        assert schedule.factor(step - 1, 10_000) == pytest.approx(published)


def test_the_line_is_that_of_bert_but_that_its_first_and_last_steps_learn_something():
    schedule = Linear(10)
    for step in range(100):
        # As in the code of Devlin et al. 2019, which counts the steps that were taken before.
        published = step / 10 if step < 10 else 1 - step / 100
        assert schedule.factor(step, 100) == pytest.approx(published, abs=0.11)
    assert [schedule.factor(step, 100) for step in (0, 9, 10, 55, 99)] == pytest.approx([0.1, 1, 1, 0.5, 1 / 90])
    assert Linear(10, minimum=0.5).factor(55, 100) == pytest.approx(0.75)


def test_a_warm_up_that_outlasts_the_run_is_refused():
    for schedule in (Constant(5), CosineCycles(5, period=3), InverseSquareRoot(5), Linear(5)):
        schedule.check_fits(6)
        with pytest.raises(ValueError, match=r"schedule.warmup must be less than the 5 steps of the run, got 5; lower"):
            schedule.check_fits(5)


def test_toy_schedules_fit_a_handful_of_steps():
    for schedule in (Constant(500), Cosine(0.1), WIKITEXT_103, InverseSquareRoot(500), Linear(500)):
        toy = schedule.toy()
        toy.check_fits(6)
        assert type(toy) is type(schedule) and all(0 < toy.factor(step, 6) <= 1 for step in range(6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-1), "warmup must be at least 0, got -1"),
        (lambda: Cosine(2), "warmup must be between 0 and 1, got 2"),
        (lambda: Cosine(minimum=1.5), "minimum must be between 0 and 1, got 1.5"),
        (lambda: CosineCycles(0, period=0), "period must be at least 1, got 0"),
        (lambda: CosineCycles(0, period=2, growth=0.5), "growth must be at least 1, got 0.5"),
        (lambda: CosineCycles(0, period=2, shrink=-1.0), "shrink must be between 0 and 1"),
        (lambda: Linear(minimum=-0.5), "minimum must be between 0 and 1, got -0.5"),
        (lambda: InverseSquareRoot(0), "warmup must be at least 1, got 0"),
    ],
)
def test_what_is_no_schedule_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_steps_must_be_whole():
    with pytest.raises(TypeError, match=r"warmup must be an integer, got 1\.5"):
        Constant(1.5)
