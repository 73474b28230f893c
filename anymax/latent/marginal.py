"""Marginals: the expected loss and its gradient, exactly, by a sum over values."""

import torch
from torch import Tensor

from anymax.latent.estimator import Estimator, LossGiven, RowEstimate, evaluate_losses
from anymax.latent.latent import Latent, Support


class DenseMarginal(Estimator):
    """The sum over all values of probability times loss; it calls the loss for every value of every example.

    Example:
        >>> from anymax.latent import Choice, DenseMarginal
        >>> scores, costs = torch.zeros(1, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> found = DenseMarginal()(Choice(scores), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> found.loss, found.calls, scores.grad
        (tensor([3.]), tensor([3]), tensor([[-0.6667, -0.3333,  1.0000]]))
    """

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        return _expected_loss(latent.everything(), latent.num_rows, loss_given)


class SparseMarginal(Estimator):
    """The sum over the values of positive probability: the same as dense, at the cost of the support alone.

    With a sparse mapping that is a few values for each example, all in one call. With a mapping that gives no zeros,
    such as softmax, it is `DenseMarginal` at its cost.

    Correia et al. 2020.

    Example:
        >>> from anymax.latent import Choice, SparseMarginal
        >>> scores, costs = torch.tensor([[2.0, 1.5, 0.5]], requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> found = SparseMarginal()(Choice(scores, anymax.sparsemax), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> found.loss, found.calls, scores.grad
        (tensor([1.2500]), tensor([2]), tensor([[-0.5000,  0.5000,  0.0000]]))
    """

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        return _expected_loss(latent.support(), latent.num_rows, loss_given)


def _expected_loss(support: Support, num_rows: int, loss_given: LossGiven) -> RowEstimate:
    losses = evaluate_losses(loss_given, support.values, support.example)
    return RowEstimate(
        sum_by_example(support.probs * losses, support.example, num_rows),
        sum_by_example(torch.ones_like(support.example), support.example, num_rows),
    )


def sum_by_example(terms: Tensor, example: Tensor, num_rows: int) -> Tensor:
    """The sum (rows,) of the terms (pairs,) that belong to each example."""
    return terms.new_zeros(num_rows).index_add(0, example, terms)
