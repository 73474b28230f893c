"""The random bits behind dropout, at fixed seeds: right frequencies, and nothing to be seen of one entry in another."""

import math

import pytest
import torch
from torch import Tensor

from anymax.kernels.dropout.reference import _split_mix, random_bits, threshold
from tests.each import each

COUNT = 2**18
# How many deviations from its mean a number may be: one in 150 000 is further away by chance.
FAR = 4.5


def masks(rate: float, seeds: list[int], count: int = COUNT, first: int = 0) -> Tensor:
    """What is kept, one row per seed."""
    return random_bits(torch.tensor(seeds), first, count) >= threshold(rate)


def count_deviation(num_true: int, count: int, chance: float) -> float:
    """How many standard deviations a binomial count is from its mean."""
    return (num_true - count * chance) / math.sqrt(count * chance * (1 - chance))


def dependence(a: Tensor, b: Tensor) -> float:
    """The signed root of chi-square of the 2 x 2 table of two masks: standard normal if they are independent."""
    count, both = a.numel(), int((a & b).sum())
    share_a, share_b = int(a.sum()) / count, int(b.sum()) / count
    variances = share_a * (1 - share_a) * share_b * (1 - share_b)
    return (both / count - share_a * share_b) * math.sqrt(count / variances)


@each("rate", [0.001, 0.1, 0.5, 0.75, 0.99])
@each("seed", [0, 1, 2, -7, 2**62])
def test_as_many_are_kept_as_the_rate_says(rate: float, seed: int) -> None:
    for count in (1000, COUNT):
        kept = masks(rate, [seed], count)
        assert abs(count_deviation(int(kept.sum()), count, 1 - rate)) < FAR


def test_counts_spread_over_seeds_as_binomial_counts_do() -> None:
    num_seeds, count = 2000, 500
    deviations = torch.tensor(
        [count_deviation(int(row.sum()), count, 0.7) for row in masks(0.3, list(range(num_seeds)), count)]
    )
    assert abs(float(deviations.mean())) < FAR / math.sqrt(num_seeds)
    assert abs(float(deviations.var()) - 1) < FAR * math.sqrt(2 / num_seeds)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbours_and_entries_of_neighbouring_rows_are_independent(rate: float) -> None:
    for seed in range(4):
        kept = masks(rate, [seed])[0]
        for distance in (1, 2, 3, 4, 7, 8, 16, 64, 400, 1024, 1150, 4096, 4600, 2**16):
            assert abs(dependence(kept[:-distance], kept[distance:])) < FAR, (seed, distance)


@pytest.mark.parametrize("distance", [2**20, 2**24, 2**28, 2**30, 2**31, 2**32, 2**40])
def test_entries_far_apart_are_independent(distance: int) -> None:
    for seed in range(4):
        near, far = (masks(0.5, [seed], first=first) for first in (0, distance))
        assert abs(dependence(near, far)) < FAR


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_neighbouring_seeds_are_independent(rate: float) -> None:
    kept = masks(rate, [0, 1, 2, 3, -1, 2**32, 2**62, 2**62 + 1])
    for i in range(len(kept)):
        for j in range(i):
            assert abs(dependence(kept[i], kept[j])) < FAR, (i, j)
            # Nor is one the other, moved.
            assert abs(dependence(kept[i, 1:], kept[j, :-1])) < FAR, (i, j)


def test_no_mask_is_another_one_moved() -> None:
    # Where the additive start of one seed's hash meets that of the other, the rest of the hash still differs.
    a, b = torch.tensor([1]), torch.tensor([2])
    distance = int(_split_mix(b, 0) - _split_mix(a, 0)) * pow(0x9E3779B9, -1, 2**32) % 2**32
    moved, kept = masks(0.5, [1], 2**16, distance), masks(0.5, [2], 2**16)
    assert abs(dependence(moved, kept)) < FAR


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_the_number_of_runs_is_that_of_independent_entries(rate: float) -> None:
    for seed in range(8):
        kept = masks(rate, [seed])[0]
        num_kept = int(kept.sum())
        pairs = 2 * num_kept * (COUNT - num_kept)
        mean = 1 + pairs / COUNT
        variance = pairs * (pairs - COUNT) / (COUNT**2 * (COUNT - 1))
        num_runs = 1 + int((kept[1:] != kept[:-1]).sum())
        assert abs(num_runs - mean) / math.sqrt(variance) < FAR


def test_patterns_of_eight_neighbours_are_equally_frequent() -> None:
    patterns = (masks(0.5, list(range(8))).reshape(-1, 8) * 2 ** torch.arange(8)).sum(1)
    expected = len(patterns) / 256
    chi_square = float(((patterns.bincount(minlength=256) - expected) ** 2 / expected).sum())
    assert abs(chi_square - 255) / math.sqrt(2 * 255) < FAR


def test_no_two_of_the_high_bits_go_together() -> None:
    bits = random_bits(torch.tensor([5]), 0, COUNT)[0]
    high = torch.stack([(bits >> place & 1).bool() for place in range(16, 32)])
    for i in range(16):
        assert abs(count_deviation(int(high[i].sum()), COUNT, 0.5)) < FAR
        for j in range(i):
            assert abs(dependence(high[i], high[j])) < FAR, (i, j)


def flipped_share(before: Tensor, after: Tensor) -> Tensor:
    """How often each of the high sixteen bits, which decide all but one comparison in 65536, differs."""
    return torch.stack([((before ^ after) >> place & 1).double().mean() for place in range(16, 32)])


@each("place", range(40))
def test_a_bit_of_the_number_flips_half_of_the_high_bits(place: int) -> None:
    count = 2**16
    before = random_bits(torch.arange(4), 0, count)
    number = torch.arange(count) ^ 2**place
    after = before[:, number] if place < 16 else random_bits(torch.arange(4), 2**place, count)
    assert (flipped_share(before, after) - 0.5).abs().max() < 0.02


@each("place", range(0, 64, 3))
def test_a_bit_of_the_seed_flips_half_of_the_high_bits(place: int) -> None:
    seeds = torch.arange(4000)
    before, after = (random_bits(given, 17, 16) for given in (seeds, seeds ^ (1 << place if place < 63 else -(2**63))))
    assert (flipped_share(before, after) - 0.5).abs().max() < 0.02


def test_the_hash_is_one_to_one() -> None:
    # So many numbers drawn freely would hold 128 pairs of equals.
    assert len(random_bits(torch.tensor([9]), 0, 2**20).unique()) == 2**20
