"""What an estimator is: a way to find the gradient of an expected loss over a discrete latent."""

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from anymax.kernels.backend import is_plain
from anymax.latent.latent import Latent


class LossNotFiniteError(ValueError, FloatingPointError):
    """The loss of a choice is infinite or undefined."""


class LossGiven(Protocol):
    """The loss of every pair of a choice and an example: what the model around the latent is, to an estimator.

    Example:
        >>> from anymax.latent import Choice, SparseMarginal
        >>> data, decode = torch.randn(4, 8), torch.nn.Linear(3, 8)
        >>> def loss_given(choice, example):
        ...     return (decode(choice) - data[example]).square().sum(-1)
        >>> latent = Choice(torch.randn(4, 3), anymax.sparsemax)
        >>> SparseMarginal()(latent, loss_given).surrogate.mean().backward()
        >>> decode.weight.grad.shape
        torch.Size([8, 3])
    """

    def __call__(self, choice: Tensor, example: Tensor, /) -> Tensor:
        """Losses (pairs,) of choices (pairs, size), which may be relaxed, each for a row (pairs,) of the batch."""


class Estimate(NamedTuple):
    """What an estimator found for each example, all of the latent's batch shape.

    Args:
        surrogate: call backward on it. Its value is the loss, or the estimate of the expected loss: terms that are
            there for their gradient add none. So it can be what another `loss_given` returns.
        loss: the same without gradient.
        calls: number of rows that reached `loss_given`.

    Example:
        >>> from anymax.latent import Choice, ScoreFunction
        >>> scores, costs = torch.zeros(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> found = ScoreFunction()(Choice(scores), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> found.loss.shape, found.calls
        (torch.Size([5]), tensor([1, 1, 1, 1, 1]))
    """

    surrogate: Tensor
    loss: Tensor
    calls: Tensor


class RowEstimate(NamedTuple):
    """The surrogate and the calls of each row of the flattened batch."""

    surrogate: Tensor
    calls: Tensor


class Estimator(nn.Module, ABC):
    """Estimates the expected loss of a latent and its gradient, for the scores and for what the loss depends on.

    Every estimator is called in the same way, so that one can be swapped for another. Samples are drawn with torch's
    global generator, which `torch.manual_seed` seeds.

    Example:
        >>> from anymax.latent import Choice, DenseMarginal, Gumbel, ScoreFunction
        >>> scores, costs = torch.zeros(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> for estimator in (DenseMarginal(), ScoreFunction("average"), Gumbel(temperature=0.5)):
        ...     found = estimator(Choice(scores), lambda choice, example: choice @ costs)
        ...     found.surrogate.mean().backward()
        ...     print(type(estimator).__name__, found.calls.tolist())
        DenseMarginal [3, 3, 3, 3, 3]
        ScoreFunction [1, 1, 1, 1, 1]
        Gumbel [1, 1, 1, 1, 1]
    """

    def forward(self, latent: Latent, loss_given: LossGiven, context: Tensor | None = None) -> Estimate:
        """Estimate the loss of each example.

        Args:
            context: (rows, size) what an estimator that learns to predict the loss predicts it from: only `NVIL` does.
        """
        if not isinstance(latent, Latent):
            raise TypeError(f"latent must be a Latent, got {type(latent).__name__}; wrap scores as Choice(scores)")
        surrogate, calls = self.estimate_rows(latent, loss_given, context)
        surrogate, calls = surrogate.reshape(latent.batch_shape), calls.reshape(latent.batch_shape)
        return Estimate(surrogate, surrogate.detach(), calls)

    @abstractmethod
    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        """The estimate of each row of the flattened batch."""


def evaluate_losses(loss_given: LossGiven, choice: Tensor, example: Tensor) -> Tensor:
    """The losses of pairs, checked: floating point, one for each pair, and finite."""
    losses = loss_given(choice, example)
    if not isinstance(losses, Tensor):
        raise TypeError(f"loss_given must return a tensor of losses, got {type(losses).__name__}")
    if not losses.is_floating_point():
        raise TypeError(f"loss_given must return floating point losses, got {losses.dtype}; convert with .float()")
    if losses.shape != example.shape:
        raise ValueError(
            f"loss_given must return one loss for each of the {len(example)} pairs, of shape {tuple(example.shape)}, "
            f"got {tuple(losses.shape)}; sum each pair's loss and leave the mean over pairs to the caller"
        )
    _check_finite(losses, example)
    return losses


def evaluate_rows(loss_given: LossGiven, values: Tensor) -> Tensor:
    """The loss of one value for each example, (rows,), from values (*batch, size)."""
    flat = values.reshape(-1, values.shape[-1])
    return evaluate_losses(loss_given, flat, torch.arange(len(flat), device=flat.device))


def without_value(term: Tensor) -> Tensor:
    """A term that adds its gradient to a sum, and nothing to the sum's value."""
    return term - term.detach()


def one_call_each(latent: Latent) -> Tensor:
    """Calls of an estimator that evaluates one value for each example."""
    return torch.ones(latent.num_rows, dtype=torch.long, device=latent.scores.device)


def _check_finite(losses: Tensor, example: Tensor) -> None:
    if not is_plain(losses) or bool(losses.isfinite().all()):
        return
    first = int((~losses.detach().isfinite()).nonzero()[0, 0])
    raise LossNotFiniteError(
        f"loss_given must return finite losses, got {losses[first].item()} for example {int(example[first])} of the "
        "flattened batch; look at what that example's choice does to the model"
    )
