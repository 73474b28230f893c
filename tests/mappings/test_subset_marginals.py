"""Subset marginals against a quadratic program."""

import pytest
import torch

import anymax
from tests.oracles import nearest_point


@pytest.mark.parametrize("k", [1, 2, 2.5, 4, 6])
@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_is_the_nearest_point_of_the_polytope(k: float, scale: float) -> None:
    scores = torch.randn(6, 6, dtype=torch.float64) * scale
    expected = nearest_point(scores, total=k, upper=1.0)
    torch.testing.assert_close(anymax.subset_marginals(scores, k), expected, rtol=0, atol=1e-6)


def test_is_sparsemax_when_one_is_chosen() -> None:
    scores = torch.randn(10, 7, dtype=torch.float64)
    torch.testing.assert_close(anymax.subset_marginals(scores, 1), anymax.sparsemax(scores), rtol=0, atol=1e-12)


def test_k_may_differ_by_row_and_gets_a_gradient() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[1.3], [2.0], [4.6]], dtype=torch.float64, requires_grad=True)
    marginals = anymax.subset_marginals(scores, k)
    torch.testing.assert_close(marginals.sum(-1, keepdim=True), k)
    assert torch.autograd.gradcheck(anymax.subset_marginals, (scores, k), eps=1e-7, atol=1e-6)


def test_a_row_with_fewer_than_k_left_chooses_all_of_them() -> None:
    mask = torch.tensor([[True, False, True, False, False]])
    marginals = anymax.subset_marginals(torch.randn(1, 5), 3, mask=mask)
    torch.testing.assert_close(marginals, mask.float())


def test_far_apart_scores_do_not_lose_the_total() -> None:
    scores = torch.tensor([[1e6, 1e6 + 0.25, -1e6, 3.0, -torch.inf]])
    torch.testing.assert_close(anymax.subset_marginals(scores, 3).sum(), torch.tensor(3.0))


@pytest.mark.parametrize("k", [0, 0.5, 6, float("nan")])
def test_a_k_outside_its_range_is_refused(k: float) -> None:
    for value in (k, torch.tensor([[2.0], [k]])):
        with pytest.raises(ValueError, match="k must"):
            anymax.subset_marginals(torch.randn(2, 5), value)


def test_a_long_row_keeps_its_total() -> None:
    marginals = anymax.subset_marginals(torch.randn(200_000), 50_000)
    torch.testing.assert_close(marginals.double().sum().item(), 50_000.0, rtol=1e-7, atol=0)
