"""Batches of parallel rows with drawn lengths: how they are distributed, their rates, and what decides them."""

import math

import pytest
import torch

from anymax.data import ContiguousBatches, RandomLengths
from anymax.data.batches.contiguous import draw_lengths

TOKENS = torch.arange(1, 20_001)


def batches_of(how: RandomLengths | None, *, seed: int = 1, block: int = 70) -> ContiguousBatches:
    return ContiguousBatches(TOKENS, 4, block, eos=0, random_lengths=how, seed=seed)


def test_lengths_are_normal_around_the_block_and_now_and_then_around_half_of_it():
    lengths = draw_lengths(RandomLengths(), 70, 40_000, seed=1, epoch=0)
    short, long = lengths[lengths < 52].double(), lengths[lengths >= 52].double()
    assert len(short) / len(lengths) == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 40_000))
    # What stands behind the point is cut off, which takes half a token on average.
    for part, mean in ((short, 34.5), (long, 69.5)):
        assert float(part.mean()) == pytest.approx(mean, abs=4 * 5 / math.sqrt(len(part)))
        assert float(part.std()) == pytest.approx(5, rel=0.06)


def test_lengths_stay_between_least_and_most():
    lengths = draw_lengths(RandomLengths(0.5, 30.0, 20, 80), 70, 10_000, seed=1, epoch=0)
    assert (int(lengths.min()), int(lengths.max())) == (20, 80)
    assert set(draw_lengths(RandomLengths(1.0, 0.0), 71, 50, seed=1, epoch=0).tolist()) == {35}
    assert set(draw_lengths(RandomLengths(0.0, 0.0), 71, 50, seed=1, epoch=0).tolist()) == {71}


def test_epochs_and_seeds_have_their_own_lengths_and_numbers_of_batches():
    batches, other = batches_of(RandomLengths()), batches_of(RandomLengths(), seed=2)
    numbers = [batches.length(epoch) for epoch in range(20)]
    assert len(set(numbers)) > 1 and numbers != [other.length(epoch) for epoch in range(20)]
    for epoch in range(3):
        widths = [batch.ids.shape[1] for batch in batches]
        assert len(widths) == numbers[epoch] and sum(widths) == 5_000


def test_the_rate_is_what_was_drawn_over_the_block_though_the_rows_end_before():
    batches = batches_of(RandomLengths())
    drawn = draw_lengths(RandomLengths(), 70, 1_000, seed=1, epoch=0).tolist()
    *most, last = list(batches)
    assert all(batch.rate == batch.ids.shape[1] / 70 for batch in most)
    assert [batch.rate for batch in (*most, last)] == [length / 70 for length in drawn[: len(most) + 1]]
    assert last.rate > last.ids.shape[1] / 70


def test_batches_of_one_length_have_the_whole_rate_and_the_same_number_in_every_epoch():
    batches = batches_of(None)
    assert {batch.rate for batch in batches} == {1.0}
    assert {batches.length(epoch) for epoch in range(5)} == {-(-5_000 // 70)}


def test_the_state_names_what_lengths_are_drawn_by():
    state = batches_of(RandomLengths()).state_dict()
    with pytest.raises(ValueError, match=r"random_lengths .*'deviation': 5.0.*\(now .*'deviation': 4.0.*\), seed 1 "):
        batches_of(RandomLengths(deviation=4.0), seed=2).load_state_dict(state)
    assert "seed" not in batches_of(None).state_dict()["made_of"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"short": 1.5}, "short must be between 0 and 1, got 1.5"),
        ({"deviation": -1.0}, "deviation must be at least 0 and finite, got -1.0"),
        ({"deviation": math.nan}, "deviation must be at least 0 and finite, got nan"),
        ({"least": 0}, "least must be at least 1, got 0"),
        ({"most": 4}, "most must be at least as large as least, 5, got 4"),
    ],
)
def test_what_are_no_lengths_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        RandomLengths(**fields)
