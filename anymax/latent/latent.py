"""What a discrete latent variable is: a batch of distributions over one-hot or bit vectors, given by scores.

With its support as a list, and functions of rows of probabilities with zeros among them.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.mappings.arguments import check_values


class Support(NamedTuple):
    """Pairs of an example and one of its values, in order of example.

    Args:
        values: (pairs, size), in the dtype of the scores.
        probs: (pairs,) how likely the example is to take the value; they carry gradients to the scores.
        example: (pairs,) the row of the flattened batch that each pair belongs to.

    Example:
        >>> from anymax.latent import Choice
        >>> scores = torch.tensor([[2.0, 1.5, 0.5], [9.0, 0.0, 0.0]])
        >>> values, probs, example = Choice(scores, anymax.sparsemax).support()
        >>> values
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [1., 0., 0.]])
        >>> probs, example
        (tensor([0.7500, 0.2500, 1.0000]), tensor([0, 0, 1]))
    """

    values: Tensor
    probs: Tensor
    example: Tensor

    def positive(self) -> "Support":
        """The same without the pairs of zero probability."""
        kept = self.probs.detach() > 0
        return Support(self.values[kept], self.probs[kept], self.example[kept])


class Latent(ABC):
    """A batch of distributions over vectors of `size` zeros and ones, with the methods of torch.distributions.

    Values come in the dtype of the scores. Probabilities, their logarithms and entropies come in the dtype they are
    computed in, which is float32 for scores of half precision.

    Args:
        scores: (*batch, size), any batch shape, finite, or minus infinity for an entry that may not be chosen.

    Example:
        >>> from anymax.latent import Choice
        >>> latent = Choice(torch.tensor([[2.0, 1.5, 0.5, -1.0]]), anymax.sparsemax)
        >>> latent.mode()
        tensor([[1., 0., 0., 0.]])
        >>> latent.log_prob(latent.mode()).exp()
        tensor([0.7500])
        >>> latent.entropy()
        tensor([0.5623])
        >>> latent.sample().shape, latent.support().values.shape
        (torch.Size([1, 4]), torch.Size([2, 4]))
    """

    def __init__(self, scores: Tensor) -> None:
        _check_scores(scores)
        self.scores = scores

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch, which may be empty."""
        return self.scores.shape[:-1]

    @property
    def size(self) -> int:
        """How many entries a value has."""
        return self.scores.shape[-1]

    @property
    def num_rows(self) -> int:
        """How many examples the batch has."""
        return math.prod(self.batch_shape)

    @abstractmethod
    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """One value for each example, (*batch, size); by default with torch's global generator."""

    @abstractmethod
    def log_prob(self, values: Tensor) -> Tensor:
        """The logarithm of the probability of values (*sample, *batch, size): minus infinity outside of the support."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """The entropy of each example's distribution in nats, (*batch); its gradient is finite at zeros too."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most likely value of each example, (*batch, size)."""

    @abstractmethod
    def relaxed(self, temperature: float, *, hard: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """A sample that gradients pass through, (*batch, size), between the corners and the nearer the colder.

        Args:
            hard: straight-through: the value is discrete, the gradient that of the relaxed sample.
        """

    @abstractmethod
    def support(self) -> Support:
        """All pairs of an example and a value of positive probability."""

    @abstractmethod
    def everything(self) -> Support:
        """All pairs of an example and a value, whatever the probability."""

    def check_event(self, values: Tensor) -> None:
        """Values of which the probability is asked have the batch shape and the size as their last dimensions."""
        event = (*self.batch_shape, self.size)
        if values.dim() < len(event) or values.shape[values.dim() - len(event) :] != event:
            raise ValueError(
                f"values must have a shape that ends with batch and size, {event}, got {tuple(values.shape)}; "
                "expand them over the batch"
            )


def _check_scores(scores: Tensor) -> None:
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a tensor, got {type(scores).__name__}; wrap it with torch.as_tensor")
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with .float()")
    if scores.dim() == 0 or scores.shape[-1] == 0:
        raise ValueError(
            f"scores must have at least one entry along their last dimension, got shape {tuple(scores.shape)}"
        )
    check_values("scores", "finite, or -inf where an entry may not be chosen", scores, lambda s: s < torch.inf)


def log_of(probs: Tensor) -> Tensor:
    """The logarithm, minus infinity at zero with a gradient of zero there."""
    is_zero = probs == 0
    return probs.masked_fill(is_zero, 1.0).log().masked_fill(is_zero, -torch.inf)


def entropy_of(probs: Tensor, log_probs: Tensor) -> Tensor:
    """The entropy along the last dimension in nats; a zero adds nothing to it or to its gradient."""
    return -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(-1)


def draw(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index along the last dimension for each of the other entries."""
    # One number for each row, where torch.multinomial draws one for each entry. The running sum rises only where an
    # entry has probability, so that no other is ever drawn.
    totals = probs.detach().cumsum(-1, dtype=widest(probs))
    point = torch.rand(*probs.shape[:-1], 1, dtype=totals.dtype, device=probs.device, generator=generator)
    return torch.searchsorted(totals, point * totals[..., -1:], right=True).squeeze(-1)
