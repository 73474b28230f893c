"""Sum and sample: the likeliest choices are summed exactly, the rest is sampled.

Shapes: R rows of the flattened batch, N entries, T top entries, Q rows that have a rest to sample from.
"""

from typing import Literal

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.latent.choice import Choice
from anymax.latent.estimator import Estimator, LossGiven, RowEstimate, evaluate_losses, without_value
from anymax.latent.latent import Latent, draw
from anymax.latent.marginal import sum_by_example
from anymax.latent.score_function import RunningMean


class SumAndSample(Estimator):
    """The sum over the `top` most likely choices, and one sample from the others in place of their sum: unbiased.

    With P the probability of the top and z a sample from the rest,

        E[loss] = sum over top of p loss + (1 - P) E[loss(z)]

    The second term's gradient is (1 - P) E[grad loss(z) + loss(z) grad log p(z)], with p(z) in the whole distribution,
    not in the rest: what 1 - P adds here and there cancels. The more the top holds, the less noise is left. The
    loss is not evaluated for choices of zero probability: an example has at most top + 1 calls, and nothing is sampled
    where nothing is left.

    Args:
        top: number of choices that are summed.
        baseline: "average" takes the running mean of the sampled losses of earlier training calls off every loss that
            weighs a probability. The probabilities sum to one, so nothing changes on average.

    Liu et al. 2019. For `Choice` only.

    Example:
        >>> from anymax.latent import Choice, SumAndSample
        >>> scores, costs = torch.tensor([[3.0, 0.0, 0.0, 0.0]], requires_grad=True), torch.tensor([1.0, 2.0, 2.0, 2.0])
        >>> found = SumAndSample(top=1)(Choice(scores), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> found.loss, found.calls  # the first choice, and one sample of the others
        (tensor([1.1300]), tensor([2]))
    """

    def __init__(self, top: int = 1, *, baseline: Literal["average"] | None = None) -> None:
        super().__init__()
        check_counts(top=top)
        if baseline not in (None, "average"):
            raise ValueError(f'baseline must be None or "average", got {baseline!r}')
        self.top = top
        self.average = RunningMean() if baseline == "average" else None

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        choice = self._check(latent)
        probs_RN = choice.probs.reshape(-1, choice.size)
        top_RT = probs_RN.detach().topk(self.top, sorted=False).indices
        row_T, index_T = _positive(top_RT, probs_RN)
        row_Q, index_Q, weight_Q = _sample_rest(probs_RN.detach().scatter(-1, top_RT, 0.0))
        example = torch.cat([row_T, row_Q])
        losses = evaluate_losses(loss_given, choice.one_hot(torch.cat([index_T, index_Q])), example)
        losses_T, losses_Q = losses.split([len(row_T), len(row_Q)])
        log_probs_RN = choice.log_probs.reshape(-1, choice.size)
        baseline = 0.0 if self.average is None else self.average.value()
        terms = [
            _summed(probs_RN[row_T, index_T], losses_T, baseline),
            weight_Q * _sampled(log_probs_RN[row_Q, index_Q], losses_Q, baseline),
        ]
        if self.average is not None and self.training:
            self.average.update(losses_Q)
        return RowEstimate(
            sum_by_example(torch.cat(terms), example, choice.num_rows),
            sum_by_example(torch.ones_like(example), example, choice.num_rows),
        )

    def _check(self, latent: Latent) -> Choice:
        if not isinstance(latent, Choice):
            raise TypeError(
                f"latent must be a Choice for SumAndSample, got {type(latent).__name__}; "
                "use SparseMarginal where the support is small, or ScoreFunction"
            )
        if self.top > latent.size:
            raise ValueError(f"top must be at most the {latent.size} entries of the choice, got {self.top}")
        return latent

    def extra_repr(self) -> str:
        return f"top={self.top}, baseline={None if self.average is None else 'average'}"


def _summed(probs: Tensor, losses: Tensor, baseline: Tensor | float) -> Tensor:
    return probs * losses - without_value(probs * baseline)


def _sampled(log_probs: Tensor, losses: Tensor, baseline: Tensor | float) -> Tensor:
    return losses + without_value((losses.detach() - baseline) * log_probs)


def _positive(index_RT: Tensor, probs_RN: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and the entries of an index, without those of zero probability."""
    row, place = (probs_RN.detach().gather(-1, index_RT) > 0).nonzero(as_tuple=True)
    return row, index_RT[row, place]


def _sample_rest(rest_RN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that have a rest, an entry drawn for each in proportion to it, and how much probability it has."""
    weight_R = rest_RN.sum(-1)
    row_Q = weight_R.nonzero().squeeze(-1)
    weight_Q = weight_R[row_Q]
    # Scaled first: among very small numbers a zero could be drawn.
    index_Q = draw(rest_RN[row_Q] / weight_Q.unsqueeze(-1), None)
    return row_Q, index_Q, weight_Q
