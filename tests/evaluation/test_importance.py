"""Likelihoods under a code of bits: estimates of few bits against a sum over all bit-vectors."""

import math

import pytest
import torch
from torch import Tensor

from anymax.evaluation.importance import log_likelihood
from anymax.latent import BitVector, Independent, SparseMap, TopKSparsemax
from anymax.latent.bit_vector import BitMapping
from anymax.structured import Budget
from tests.latent.members import all_bits

BITS = 5
SPARSE = {"topk": TopKSparsemax(4), "sparsemap": SparseMap(), "budget": SparseMap(Budget(2))}
MAPPINGS = {"independent": Independent(), **SPARSE}
SCORES = torch.tensor([0.7, -0.4, 0.1, -1.6, 0.3], dtype=torch.float64)


class Table:
    """The loss of every bit-vector for each image, drawn at random; it keeps how many pairs each call had."""

    def __init__(self, num_images: int) -> None:
        self.losses = 1.5 * torch.randn(num_images, 2**BITS, dtype=torch.float64) + 20
        self.sizes: list[int] = []

    def __call__(self, bits: Tensor, example: Tensor) -> Tensor:
        self.sizes.append(len(example))
        return self.losses[example, self.number(bits)]

    def number(self, bits: Tensor) -> Tensor:
        """Which of `all_bits` each is."""
        return (bits * 2 ** torch.arange(BITS).flip(0)).sum(-1).long()

    def exact(self) -> Tensor:
        return (-self.losses).logsumexp(1) - BITS * math.log(2)


def estimates(mapping: BitMapping, table: Table, **options: bool) -> Tensor:
    """Many estimates of the likelihood of one image, each by a single sample, relative to the exact one."""
    copies = 40_000
    latent = BitVector(SCORES.expand(copies, BITS), mapping)
    found = log_likelihood(latent, lambda bits, example: table(bits, 0 * example), 1, **options)
    return (found - table.exact()).exp()


def test_the_table_knows_every_bit_vector():
    assert torch.equal(Table(1).number(all_bits(BITS)), torch.arange(2**BITS))


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_single_sample_is_right_on_average(name: str):
    drawn = estimates(MAPPINGS[name], Table(1))
    error = drawn.std() / len(drawn) ** 0.5
    assert error < 0.02 and (drawn.mean() - 1).abs() < 4 * error


@pytest.mark.parametrize("name", SPARSE)
def test_without_rejection_the_support_counts_twice(name: str):
    table, mapping = Table(1), SPARSE[name]
    support = BitVector(SCORES, mapping).support().values
    twice = (-table.losses[0, table.number(support)]).exp().sum() / 2**BITS / table.exact().exp()
    drawn = estimates(mapping, table, reject=False)
    error = drawn.std() / len(drawn) ** 0.5
    assert (drawn.mean() - 1 - twice).abs() < 4 * error < twice


@pytest.mark.parametrize("name", MAPPINGS)
def test_many_samples_come_near_for_every_image(name: str):
    table = Table(3)
    latent = BitVector(SCORES + torch.randn(3, BITS) / 2, MAPPINGS[name])
    exact = table.exact()
    one, many = (log_likelihood(latent, table, number) for number in (1, 600))
    assert (many - exact).abs().max() < 0.3
    assert (many - exact).abs().sum() < (one - exact).abs().sum()


def test_a_support_that_is_everything_needs_no_luck():
    table = Table(2)
    latent = BitVector(torch.zeros(2, BITS, dtype=torch.float64), TopKSparsemax(2**BITS))
    torch.testing.assert_close(log_likelihood(latent, table, 1), table.exact())


def test_losses_too_large_for_their_exponentials_are_summed():
    for mapping in MAPPINGS.values():
        table = Table(2)
        table.losses += 5000
        found = log_likelihood(BitVector(SCORES.expand(2, BITS), mapping), table, 200)
        assert (found - table.exact()).abs().max() < 0.5


@pytest.mark.parametrize("name", MAPPINGS)
def test_no_call_has_more_pairs_than_allowed_and_the_result_is_the_same(name: str):
    whole, parted = Table(7), Table(7)
    parted.losses = whole.losses
    latent = BitVector(SCORES.expand(7, BITS), MAPPINGS[name])
    torch.manual_seed(2)
    expected = log_likelihood(latent, whole, 5)
    torch.manual_seed(2)
    torch.testing.assert_close(log_likelihood(latent, parted, 5, at_once=3), expected)
    assert max(parted.sizes) == 3 and sum(parted.sizes) == sum(whole.sizes) >= 35


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        log_likelihood(BitVector(SCORES), Table(1), 0)
