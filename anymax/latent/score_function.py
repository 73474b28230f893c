"""The score function estimator (REINFORCE): loss at a sample, gradient through its log-probability."""

from typing import Literal

import torch
from torch import Tensor, nn

from anymax.latent.estimator import (
    Estimator,
    LossGiven,
    RowEstimate,
    evaluate_losses,
    evaluate_rows,
    one_call_each,
    without_value,
)
from anymax.latent.latent import Latent

Baseline = Literal["average", "sample"]


class ScoreFunction(Estimator):
    """The loss at one sample, with (loss - baseline) times the gradient of its log-probability: unbiased, and noisy.

    Args:
        baseline: subtracted from the loss to make the gradient less noisy. None subtracts nothing. "average" is the
            running mean of the losses of all training calls before this one, part of the state dict. "sample" (SFE+) is
            the loss at a second, independent sample, which costs a second call and serves as baseline alone: what the
            loss depends on gets its gradient from the first.
        published: only for "sample": let gradients flow into the baseline, as the code of Correia et al. 2020 does.
            What the loss depends on then also gets -log_prob times the gradient of the second loss, a bias of the
            entropy times the gradient of the expected loss; what the log-probability depends on gets the same.

    Williams 1992.

    Example:
        >>> from anymax.latent import Choice, ScoreFunction
        >>> scores, costs = torch.zeros(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> found = ScoreFunction("sample")(Choice(scores), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> found.calls, torch.isin(found.loss, costs).all()
        (tensor([2, 2, 2, 2, 2]), tensor(True))
    """

    def __init__(self, baseline: Baseline | None = None, *, published: bool = False) -> None:
        super().__init__()
        if baseline not in (None, "average", "sample"):
            raise ValueError(f'baseline must be None, "average" or "sample", got {baseline!r}')
        if published and baseline != "sample":
            raise ValueError(f'published must be left False unless baseline is "sample", got baseline {baseline!r}')
        self.baseline = baseline
        self.published = published
        self.average = RunningMean() if baseline == "average" else None

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        sample = latent.sample()
        log_prob = latent.log_prob(sample).reshape(-1)
        if self.baseline == "sample":
            losses, baseline = _two_losses(loss_given, sample, latent.sample())
            baseline = baseline if self.published else baseline.detach()
            surrogate = losses + without_value((losses.detach() - baseline) * log_prob)
            return RowEstimate(surrogate, 2 * one_call_each(latent))
        losses = evaluate_rows(loss_given, sample)
        surrogate = losses + without_value((losses.detach() - self._average()) * log_prob)
        if self.average is not None and self.training:
            self.average.update(losses)
        return RowEstimate(surrogate, one_call_each(latent))

    def _average(self) -> Tensor | float:
        return 0.0 if self.average is None else self.average.value()

    def extra_repr(self) -> str:
        return f"baseline={self.baseline!r}, published={self.published}"


def _two_losses(loss_given: LossGiven, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The losses at two samples (*batch, size), in one call."""
    values = torch.stack([first, second]).reshape(-1, first.shape[-1])
    example = torch.arange(len(values) // 2, device=values.device).repeat(2)
    losses, others = evaluate_losses(loss_given, values, example).reshape(2, -1).unbind()
    return losses, others


class RunningMean(nn.Module):
    """The mean over all updates of the mean loss at each; zero before the first. It belongs to the state."""

    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def value(self) -> Tensor:
        """The mean as it is now: a copy, which later updates leave as backward needs it."""
        return self.mean.clone()

    @torch.no_grad()
    def update(self, losses: Tensor) -> None:
        """Take in the mean of some losses; none change nothing."""
        if losses.numel() == 0:
            return
        self.count += 1
        self.mean += (losses.mean() - self.mean) / self.count
