"""A choice of one out of n, with any mapping from scores to probabilities.

Shapes: R rows of the flattened batch, N entries.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anymax.latent.latent import Latent, Support, draw, entropy_of, log_of
from anymax.mappings import gumbel_softmax, softmax
from anymax.mappings.arguments import check_values, computed_in

# How far probabilities may be from a sum of one: many times what rounding does, far from what a mistake does.
ROUNDING = 1e-2


class Choice(Latent):
    """One out of n: values are one-hot.

    Args:
        scores: (*batch, n).
        mapping: from scores to probabilities along the last dimension: a function of anymax such as `sparsemax`, a
            Module such as `Entmax(1.5)`, or `partial(topk_sparsemax, k=10)`. Where it gives zeros, the choices it
            leaves out cost a sparse marginal nothing.

    Example:
        >>> from anymax.latent import Choice, SparseMarginal
        >>> scores = torch.tensor([[2.0, 1.5, 0.5, -1.0]], requires_grad=True)
        >>> latent = Choice(scores, anymax.sparsemax)
        >>> latent.sample().shape
        torch.Size([1, 4])
        >>> found = SparseMarginal()(latent, lambda choice, example: choice @ torch.tensor([1.0, 2.0, 3.0, 4.0]))
        >>> found.loss, found.calls  # the loss was evaluated for two choices
        (tensor([1.2500]), tensor([2]))
    """

    def __init__(self, scores: Tensor, mapping: Callable[[Tensor], Tensor] = softmax) -> None:
        super().__init__(scores)
        if not callable(mapping):
            raise TypeError(f"mapping must be a function of scores, such as anymax.sparsemax, got {mapping!r}")
        self.mapping = mapping
        self.probs = _apply(mapping, scores)

    @property
    def log_probs(self) -> Tensor:
        """The logarithms of the probabilities; for softmax exact where the probabilities are too small to hold."""
        if self.mapping is softmax:
            return torch.log_softmax(self.scores.to(self.probs.dtype), -1)
        return log_of(self.probs)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        return self.one_hot(draw(self.probs, generator))

    def log_prob(self, values: Tensor) -> Tensor:
        self.check_event(values)
        index = values.argmax(-1)
        is_one_hot = (values == self.one_hot(index)).all(-1)
        log_probs = self.log_probs.expand(values.shape).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return log_probs.masked_fill(~is_one_hot, -torch.inf)

    def entropy(self) -> Tensor:
        return entropy_of(self.probs, self.log_probs)

    def mode(self) -> Tensor:
        return self.one_hot(self.probs.argmax(-1))

    def relaxed(self, temperature: float, *, hard: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """A Gumbel-softmax sample, which belongs to the softmax of the scores and to no other mapping."""
        if self.mapping is not softmax:
            raise ValueError(
                "mapping must be anymax.softmax for a relaxed sample: Gumbel noise draws from the softmax of the "
                f"scores, got {self.mapping}; use Choice(scores), or a marginal estimator with this mapping"
            )
        return gumbel_softmax(self.scores, temperature, hard=hard, generator=generator)

    def support(self) -> Support:
        probs_RN = self.probs.reshape(-1, self.size)
        example, index = (probs_RN.detach() > 0).nonzero(as_tuple=True)
        return Support(self.one_hot(index), probs_RN[example, index], example)

    def everything(self) -> Support:
        values = torch.eye(self.size, dtype=self.scores.dtype, device=self.scores.device).repeat(self.num_rows, 1)
        example = torch.arange(self.num_rows, device=self.scores.device).repeat_interleave(self.size)
        return Support(values, self.probs.reshape(-1), example)

    def one_hot(self, index: Tensor) -> Tensor:
        """The values (..., n) that choose these entries, in the dtype of the scores."""
        return self.scores.new_zeros(*index.shape, self.size).scatter(-1, index.unsqueeze(-1), 1.0)


def _apply(mapping: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    probs = mapping(scores.to(computed_in(scores.dtype)))
    if not isinstance(probs, Tensor) or probs.shape != scores.shape:
        got = tuple(probs.shape) if isinstance(probs, Tensor) else type(probs).__name__
        raise ValueError(f"mapping must give probabilities of the shape of scores {tuple(scores.shape)}, got {got}")
    rule = "1 for every row: the mapping must give a distribution, and every row must have a score above -inf"
    check_values("the sum of probs", rule, probs.sum(-1), lambda total: (total - 1).abs() < ROUNDING)
    return probs
