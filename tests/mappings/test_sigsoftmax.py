"""Sig-softmax against its definition and a published vector."""

import mpmath
import torch
from torch import Tensor

import anymax


def exactly(row: Tensor) -> Tensor:
    """By the definition, with numbers that neither overflow nor round."""
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(z)) / (1 + mpmath.exp(-mpmath.mpf(z))) for z in row.tolist()]
        return torch.tensor([float(weight / sum(weights)) for weight in weights], dtype=torch.float64)


def test_is_proportional_to_exp_times_sigmoid() -> None:
    scores = torch.randn(5, 6, dtype=torch.float64)
    weights = scores.exp() * scores.sigmoid()
    torch.testing.assert_close(anymax.sigsoftmax(scores), weights / weights.sum(-1, keepdim=True))


def test_gives_the_published_example() -> None:
    expected = torch.tensor([0.07192671, 0.23556371, 0.69250958])
    torch.testing.assert_close(anymax.sigsoftmax(torch.tensor([1.0, 2.0, 3.0])), expected)


def test_very_negative_rows_stay_finite() -> None:
    probs = anymax.sigsoftmax(torch.tensor([[-500.0, -501.0], [500.0, 499.0]]))
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))
    torch.testing.assert_close(probs[0], torch.softmax(torch.tensor([2.0, 0.0]), -1))


def test_is_right_for_scores_of_every_size_with_its_gradient() -> None:
    for dtype in (torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        near_zero = torch.tensor([0.3, -0.2, 0.0, -1.5], dtype=dtype)
        rows = [near_zero + shift for shift in (0, 30, -30, 500, -500, -1e6, 1e6)]
        rows += [torch.tensor(row, dtype=dtype) * largest for row in ([-1, -1, -1, -1], [-1, -0.6, -0.6, -0.9])]
        rows += [torch.tensor([-1e300, 2.0, 1.0, -largest]).to(dtype).clamp(min=-largest), near_zero * 1e30]
        scores = torch.stack(rows).requires_grad_()
        probs, weights = anymax.sigsoftmax(scores), torch.randn(4, dtype=dtype)
        expected = torch.stack([exactly(row) for row in scores.detach()])
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(probs.detach().double(), expected, rtol=0, atol=tolerance)
        (gradient,) = torch.autograd.grad((probs * weights).sum(), scores)
        # Of softmax, times the slope of the transform, 1 + sigmoid(-score).
        centred = weights - (expected * weights).sum(-1, keepdim=True)
        slope = 1 + torch.sigmoid(-scores.detach().double())
        torch.testing.assert_close(gradient.double(), expected * centred * slope, rtol=0, atol=8 * tolerance)
