"""Splits of marginals into bit-vectors: their mean, their sizes, and their gradients where marginals tie."""

import math

import pytest
import torch
from torch import Tensor

from anymax.structured import Bits, Budget, sparsemap
from anymax.structured.decompositions import chain, systematic
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")


def awkward(num_bits: int, dtype: torch.dtype) -> Tensor:
    """Marginals at random, equal, at both ends, near both ends, and with sums that are whole but for rounding."""
    random = torch.rand(6, num_bits, dtype=torch.float64)
    mixed = torch.where(torch.rand(6, num_bits) < 0.3, random.round(), random)
    equal = torch.tensor([0.0, 1.0, 0.5, 0.1, 1 / 3], dtype=torch.float64)[:, None].expand(5, num_bits)
    near = torch.where(random < 0.5, 1e-7, 1 - 1e-7)
    whole = random / random.sum(1, keepdim=True) * (num_bits // 2)
    return torch.cat([random, mixed, equal, near, whole.clamp(max=1), (random * 8).round() / 8]).to(dtype)


@each("dtype", [torch.float32, torch.float64])
@each("num_bits", [1, 2, 7, 128])
@each("split", [chain, systematic])
def test_the_mean_of_the_structures_is_the_marginals(split: object, num_bits: int, dtype: torch.dtype) -> None:
    marginals = awkward(num_bits, dtype)
    structures, probs = (chain if split is chain else systematic)(marginals)
    atol = 2e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close((structures * probs[:, :, None]).sum(1), marginals, rtol=0, atol=atol)
    torch.testing.assert_close(probs.sum(1), torch.ones(len(marginals), dtype=dtype))
    assert (probs >= 0).all() and (structures[probs == 0] == 0).all()
    fractional = ((marginals > 0) & (marginals < 1)).sum(1)
    assert ((probs > 0).sum(1) <= fractional + 1).all() and (probs > 0).any(0).all()


@pytest.mark.parametrize("num_bits", [1, 2, 7, 128])
def test_structures_of_a_chain_contain_one_another(num_bits: int) -> None:
    structures, probs = chain(awkward(num_bits, torch.float64))
    for own, weight in zip(structures, probs, strict=True):
        used = own[weight > 0]
        nested = used[used.sum(1).argsort()]
        assert (nested.diff(dim=0) >= 0).all() and len(nested.unique(dim=0)) == len(nested)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bits", [2, 7, 128])
def test_systematic_structures_differ_by_one_bit_in_size(num_bits: int, dtype: torch.dtype) -> None:
    marginals = awkward(num_bits, dtype)
    structures, probs = systematic(marginals)
    sizes, total = structures.sum(2), marginals.double().sum(1, keepdim=True)
    low, high = (total - 2e-5).floor(), (total + 2e-5).ceil()
    assert ((probs == 0) | ((sizes >= low) & (sizes <= high))).all()


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_structure_exceeds_the_budget(dtype: torch.dtype, scale: float) -> None:
    scores = torch.cat([torch.randn(50, 64), torch.randint(-2, 3, (50, 64))]).to(dtype) * scale
    for k in (1, 5, 32, 63, 64):
        result = sparsemap(scores, Budget(k))
        assert (result.structures.sum(2) <= k).all() and (result.marginals.sum(1) <= k + 1e-4).all()


@pytest.mark.parametrize("way", ["chain", "systematic", "active set"])
def test_a_constant_loss_has_no_gradient_even_where_marginals_tie(way: str) -> None:
    for scores in (torch.zeros(3, 6), torch.tensor([[0.5, 0.5, -0.5, 1.0, -1.0, 0.0]]), torch.full((1, 4), 1 / 3)):
        leaf = scores.double().requires_grad_()
        (gradient,) = torch.autograd.grad(sparsemap(leaf, Bits(), decomposition=way).probs.sum(), leaf)
        torch.testing.assert_close(gradient, torch.zeros_like(leaf), rtol=0, atol=1e-12)


def test_bits_at_score_zero_are_a_fair_coin() -> None:
    result = sparsemap(torch.zeros(4), Bits())
    assert result.marginals.tolist() == [0.5] * 4 and result.probs.tolist() == [0.5, 0.5]
    assert sorted(result.structures.sum(1).tolist()) == [0, 4]
    sizes = sparsemap(torch.zeros(5), Bits(), decomposition="systematic").structures.sum(1)
    assert sorted(sizes.tolist()) == [math.floor(2.5), math.ceil(2.5)]


def test_marginals_are_clipped_scores() -> None:
    scores = torch.tensor([-3.0, -1.0, 0.0, 0.5, 1.0, 4.0])
    assert sparsemap(scores, Bits()).marginals.tolist() == [0, 0, 0.5, 0.75, 1, 1]
    assert sparsemap(scores, Bits(symmetric=False)).marginals.tolist() == [0, 0, 0, 0.5, 1, 1]
