"""A loss that is not linear in the choice, and its exact gradients for scores and for a parameter of every example."""

from typing import NamedTuple

import torch
from torch import Tensor

from anymax.latent import Estimator
from tests.latent.members import Member

SIZE, WIDTH = 4, 3
# Fixed numbers, of no special form.
MIXING = torch.tensor([[0.9, -0.4, 0.3], [-1.1, 0.2, 0.8], [0.5, 1.3, -0.7], [-0.2, -0.9, 1.4]], dtype=torch.float64)


class DistanceLoss:
    """The squared distance of a mixed choice from `theta` (rows, WIDTH); it keeps the examples of each call."""

    def __init__(self, theta: Tensor) -> None:
        self.theta = theta
        self.examples: list[Tensor] = []

    def __call__(self, choice: Tensor, example: Tensor) -> Tensor:
        self.examples.append(example)
        return squared_distance(choice, self.theta[example])


def squared_distance(choice: Tensor, theta: Tensor) -> Tensor:
    return (torch.tanh(2 * choice @ MIXING.to(choice.dtype)) - theta).square().sum(-1)


class Gradients(NamedTuple):
    """Expected losses (rows,), and the gradient of their sum for scores and theta."""

    loss: Tensor
    scores: Tensor
    theta: Tensor


def exact_gradients(member: Member, scores: Tensor, theta: Tensor) -> Gradients:
    """By enumeration of each row of scores (rows, SIZE)."""
    scores, theta = scores.detach().clone().requires_grad_(), theta.detach().clone().requires_grad_()
    losses = []
    for row, parameter in zip(scores, theta, strict=True):
        values, probs = member.listed(row)
        losses.append((probs * squared_distance(values, parameter)).sum())
    loss = torch.stack(losses)
    return Gradients(loss.detach(), *torch.autograd.grad(loss.sum(), (scores, theta)))


def estimated_gradients(estimator: Estimator, member: Member, scores: Tensor, theta: Tensor) -> Gradients:
    """What the estimator gives for each row of scores (rows, SIZE)."""
    scores, theta = scores.detach().clone().requires_grad_(), theta.detach().clone().requires_grad_()
    context = torch.linspace(-1, 1, len(scores)).unsqueeze(-1)
    estimate = estimator(member.latent(scores), DistanceLoss(theta), context)
    return Gradients(estimate.loss, *torch.autograd.grad(estimate.surrogate.sum(), (scores, theta)))


class Deviation(NamedTuple):
    """How far the mean of many estimates is from what is exact, and its standard error."""

    difference: Tensor
    error: Tensor

    @property
    def in_errors(self) -> float:
        """The largest difference, in standard errors; entries that never vary count if they are wrong."""
        return ((self.difference.abs() - 1e-9).clamp(min=0) / self.error.clamp(min=1e-12)).max().item()


def deviation(estimates: Tensor, exact: Tensor) -> Deviation:
    return Deviation(estimates.mean(0) - exact, estimates.std(0) / len(estimates) ** 0.5)
