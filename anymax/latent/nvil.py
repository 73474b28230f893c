"""NVIL: the score function estimator with a baseline that a network predicts from the example."""

from collections.abc import Sequence
from itertools import chain, pairwise

from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.latent.estimator import Estimator, LossGiven, RowEstimate, evaluate_rows, one_call_each, without_value
from anymax.latent.latent import Latent


class NVIL(Estimator):
    """The loss at one sample, with (loss - prediction) times the gradient of its log-probability: unbiased.

    The prediction is a network's, from the context alone. Its squared error is part of the surrogate, so the same
    backward trains it; the context gets no gradient from it. As in Correia et al. 2020, without the centring and the
    scaling by a running variance that the estimator of Mnih and Gregor 2014 has.

    Args:
        context_size: size of the vector that describes an example.
        hidden: width of each hidden layer of the network.

    Example:
        >>> from anymax.latent import NVIL, Choice
        >>> scores, costs = torch.zeros(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> estimator, context = NVIL(context_size=8, hidden=(16,)), torch.randn(5, 8)
        >>> found = estimator(Choice(scores), lambda choice, example: choice @ costs, context)
        >>> found.surrogate.mean().backward()  # trains the baseline too
        >>> scores.grad.shape, estimator.baseline[0].weight.grad.shape
        (torch.Size([5, 3]), torch.Size([16, 8]))
    """

    def __init__(self, context_size: int, hidden: Sequence[int] = (512, 512, 512)) -> None:
        super().__init__()
        check_counts(context_size=context_size, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        self.context_size = context_size
        widths = [context_size, *hidden]
        layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)]
        self.baseline = nn.Sequential(*chain(*layers), nn.Linear(widths[-1], 1))

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        prediction = self._predict(context, latent)
        sample = latent.sample()
        losses = evaluate_rows(loss_given, sample)
        error = losses.detach() - prediction
        score = error.detach() * latent.log_prob(sample).reshape(-1)
        return RowEstimate(losses + without_value(score + error.square()), one_call_each(latent))

    def _predict(self, context: Tensor | None, latent: Latent) -> Tensor:
        shape = (latent.num_rows, self.context_size)
        if context is None:
            raise ValueError(
                f"context must be given to NVIL, of shape {shape}, got None; it is what the loss is predicted from"
            )
        if context.shape != shape:
            raise ValueError(
                f"context must have a row for each example and context_size columns, {shape}, "
                f"got {tuple(context.shape)}"
            )
        return self.baseline(context.detach()).squeeze(-1)
