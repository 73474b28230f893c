"""Normmax against the generic solver."""

import pytest
import torch

import anymax


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0, 8.0])
def test_solves_the_problem_regularized_by_a_norm(alpha: float) -> None:
    scores = torch.randn(6, 5, dtype=torch.float64)
    expected = anymax.regularized_argmax(scores, lambda p: (p**alpha).sum() ** (1 / alpha))
    torch.testing.assert_close(anymax.normmax(scores, alpha), expected, rtol=0, atol=2e-6)


def test_gradients_by_scores_and_alpha_agree_with_finite_differences() -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[1.3], [1.8], [2.5], [4.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(anymax.normmax, (scores, alpha), eps=1e-7, atol=1e-5)


def test_an_entry_at_the_edge_of_the_support_has_no_probability_and_no_gradient() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        scores = torch.tensor([[2.0, 1.0, 1.0, 0.5], [1.0, 0.0, -2.0, 0.0]], dtype=dtype, requires_grad=True)
        for alpha in (1.5, 2.5, 8.0, torch.tensor([[2.5], [8.0]])):
            probs = anymax.normmax(scores, alpha)
            assert probs.equal(torch.tensor([[1.0, 0, 0, 0]] * 2, dtype=dtype))
            assert (torch.autograd.grad(probs.square().sum(), scores)[0] == 0).all()


def test_float32_is_float64_rounded_above_alpha_two() -> None:
    scores = torch.randn(200, 30) * 3
    for alpha in (2.5, 8.0, torch.tensor(4.0)):
        expected = anymax.normmax(scores.double(), alpha)
        torch.testing.assert_close(anymax.normmax(scores, alpha).double(), expected, rtol=1e-7, atol=0)


def test_a_masked_entry_spoils_no_gradient() -> None:
    scores = torch.tensor([[1.0, 0.5, -torch.inf]], requires_grad=True)
    alpha = torch.tensor(1.5, requires_grad=True)
    gradients = torch.autograd.grad(anymax.normmax(scores, alpha)[0, 0], (scores, alpha))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("alpha", [1.0, 0.5, float("inf"), float("nan")])
def test_an_alpha_outside_its_range_is_refused(alpha: float) -> None:
    for value in (alpha, torch.tensor(alpha)):
        with pytest.raises(ValueError, match="alpha must be finite and greater than 1"):
            anymax.normmax(torch.randn(2, 3), value)
