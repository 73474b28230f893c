"""What every output layer promises: hidden vectors in, a loss or words out; and what those with one table share.

Shapes: B tokens at a time, D the model's dimension, V words, K words asked for.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.losses.blocks import MOST_BUDGET
from anymax.mappings.arguments import check_device, check_values, computed_in

# Matrices of the size of a block that are alive at once: scores, log-probabilities, and two for sampling or top-k.
COPIES = 4


class TopK(NamedTuple):
    """The likeliest words of every token, best first.

    Args:
        log_probs: (..., k), their log-probabilities.
        words: (..., k), their ids.

    Example:
        >>> layer = anymax.vocabulary.FullOutput(4, 4)
        >>> _ = layer.table.data.copy_(torch.eye(4))
        >>> best = layer.topk(torch.tensor([[0.0, 3.0, 1.0, 0.0]]), 2)
        >>> best.words
        tensor([[1, 2]])
        >>> best.log_probs
        tensor([[-0.2110, -2.2110]])
    """

    log_probs: Tensor
    words: Tensor


class OutputLayer(nn.Module, ABC):
    """A layer that turns hidden vectors into a choice among the words of a vocabulary.

    Called with targets it is the loss, so that everything that hooks a Module's forward sees it. Tokens keep their
    order, and every parameter gets a gradient in every step, whatever words the targets hold.

    Hidden vectors are taken in the type of the parameters; matrix products run in that type or the one that autocast
    chose. Losses and log-probabilities are float32, or float64 where the parameters are.

    Args:
        vocabulary_size: number of words.
        model_dim: size of a hidden vector.
        ignore_index: the target of tokens that do not count.
        memory_budget: bytes of scores that may be alive at once; by default as in `linear_cross_entropy`.

    Example:
        >>> from anymax.vocabulary import AdaptiveOutput, Bands, FullOutput, SparseOutput
        >>> hidden, target = torch.ones(3, 8), torch.tensor([4, 0, 9])
        >>> for layer in (FullOutput(10, 8), SparseOutput(10, 8), AdaptiveOutput(Bands(10, (5,), (8, 2)), 8)):
        ...     layer(hidden, target).backward()  # the loss
        ...     print(type(layer).__name__, tuple(layer.log_probs(hidden).shape), tuple(layer.sample(hidden).shape))
        FullOutput (3, 10) (3,)
        SparseOutput (3, 10) (3,)
        AdaptiveOutput (3, 10) (3,)
    """

    # Whether the loss is the negative log-probability of the target.
    is_likelihood = True
    # Methods besides forward that read parameters.
    forward_methods: tuple[str, ...] = ("log_prob", "log_probs")

    def __init__(self, vocabulary_size: int, model_dim: int, *, ignore_index: int, memory_budget: int | None) -> None:
        super().__init__()
        check_counts(vocabulary_size=vocabulary_size, model_dim=model_dim)
        if memory_budget is not None:
            check_counts(memory_budget=memory_budget)
        self.vocabulary_size = vocabulary_size
        self.model_dim = model_dim
        self.ignore_index = ignore_index
        self.memory_budget = memory_budget

    @abstractmethod
    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of predicting `target` from `hidden`, without holding tokens x vocabulary.

        Args:
            hidden: any leading shape, `model_dim` in the last dimension.
            target: words (int64 or int32) in the leading shape, or `ignore_index`.
            reduction: "mean" over the tokens that are not ignored, "sum", or "none" for one loss per token, zero where
                it is ignored. With no token left the loss is zero, and so are the gradients.
        """

    @abstractmethod
    def log_probs(self, hidden: Tensor) -> Tensor:
        """The log-probability of every word, in the leading shape of `hidden` and as wide as the vocabulary."""

    def log_prob(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The log-probability of one word per token, without holding tokens x vocabulary; 0 where it is ignored."""
        return -self.forward(hidden, target, "none")

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> TopK:
        """The k likeliest words of every token. Carries no gradient."""
        check_counts(k=k)
        if k > self.vocabulary_size:
            raise ValueError(f"k must be at most the vocabulary size, {self.vocabulary_size}, got {k}")
        best = [self._topk_rows(hidden_BD, k) for hidden_BD in self._row_blocks(hidden)]
        shape = (*hidden.shape[:-1], k)
        log_probs, words = (torch.cat(parts).reshape(shape) for parts in zip(*best, strict=True))
        return TopK(log_probs, words)

    @torch.no_grad()
    def sample(self, hidden: Tensor, *, temperature: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """Draw one word for every token.

        Args:
            temperature: log-probabilities are divided by it and normalised again, so that below 1 likely words become
                likelier.
            generator: where the randomness comes from; by default torch's own.
        """
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"temperature must be a positive finite number, got {temperature}; topk(hidden, 1) gives the best word"
            )
        words = [self._sample_rows(hidden_BD, temperature, generator) for hidden_BD in self._row_blocks(hidden)]
        return torch.cat(words).reshape(hidden.shape[:-1])

    def _topk_rows(self, hidden_BD: Tensor, k: int) -> TopK:
        """A layer may override this with something that does not need every word's probability."""
        return TopK(*self.log_probs(hidden_BD).topk(k))

    def _sample_rows(self, hidden_BD: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
        """A layer may override this with something that does not need every word's probability."""
        return draw(self.log_probs(hidden_BD) / temperature, generator)

    def _row_blocks(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Tokens as rows, so few at a time that their scores for all words stay within the budget."""
        self._check_hidden(hidden)
        budget = MOST_BUDGET if self.memory_budget is None else self.memory_budget
        size = widened(next(self.parameters()).new_empty(0)).element_size()
        return hidden.reshape(-1, self.model_dim).split(max(1, budget // (COPIES * size * self.vocabulary_size)))

    def _check_hidden(self, hidden: Tensor) -> None:
        if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
            got = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
            raise TypeError(f"hidden must be a floating-point tensor, got {got}; ids go through an input layer first")
        if hidden.dim() == 0 or hidden.shape[-1] != self.model_dim:
            raise ValueError(
                f"hidden must be {self.model_dim} wide in its last dimension, the model_dim of this layer, "
                f"got shape {tuple(hidden.shape)}; build the layer with the width of the model"
            )

    def _check_target(self, hidden: Tensor, target: Tensor) -> None:
        if not isinstance(target, Tensor) or target.dtype not in (torch.int64, torch.int32):
            got = target.dtype if isinstance(target, Tensor) else type(target).__name__
            raise TypeError(f"target must be a tensor of words, int64 or int32, got {got}; convert with .long()")
        check_device("target", target, hidden)
        if target.shape != hidden.shape[:-1]:
            raise ValueError(
                f"target must have the shape of hidden less the last dimension, {tuple(hidden.shape[:-1])}, "
                f"got {tuple(target.shape)}"
            )
        rule = f"a word from 0 to {self.vocabulary_size - 1}, or ignore_index ({self.ignore_index})"
        check_values(
            "target", rule, target, lambda t: ((t >= 0) & (t < self.vocabulary_size)) | (t == self.ignore_index)
        )


def refuse_label_smoothing(layer: str, label_smoothing: float) -> None:
    """For layers that cannot spread a target over all words at their price."""
    if label_smoothing != 0:
        raise ValueError(
            f"label_smoothing must be 0 for {layer}, got {label_smoothing}; leave it out, or use FullOutput or "
            "SparseOutput, which have it"
        )


def widened(scores: Tensor) -> Tensor:
    """Scores in the precision they are normalised in."""
    return scores.to(computed_in(scores.dtype))


def draw(log_weights_BV: Tensor, generator: torch.Generator | None) -> Tensor:
    """One entry of every row, drawn by the exponential of its log-weight."""
    return draw_by(log_weights_BV.softmax(-1), generator)


def draw_by(probs_BV: Tensor, generator: torch.Generator | None) -> Tensor:
    """One entry of every row, drawn by its probability; rows need not sum to one."""
    try:
        return torch.multinomial(probs_BV, 1, generator=generator)[:, 0]
    except RuntimeError as error:
        # A device says so later, and by itself.
        if bool(probs_BV.isfinite().all()):
            raise
        raise ValueError(
            "probabilities must be finite, but the model's are not; its weights are too large: use another checkpoint"
        ) from error


class TableOutput(OutputLayer):
    """An output layer that scores every word by one vector of a table.

    Args:
        dim: width of the table; by default model_dim.
        bias: whether every word has a number added to its score.
        projected: whether a projection stands between the model and a table of another width.
    """

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        *,
        dim: int | None,
        bias: bool,
        projected: bool = True,
        ignore_index: int,
        memory_budget: int | None,
    ) -> None:
        super().__init__(vocabulary_size, model_dim, ignore_index=ignore_index, memory_budget=memory_budget)
        dim = model_dim if dim is None else dim
        check_counts(dim=dim)
        self.dim = dim
        self.table = nn.Parameter(torch.empty(vocabulary_size, dim))
        needs_projection = projected and dim != model_dim
        self.projection = nn.Parameter(torch.empty(model_dim, dim)) if needs_projection else None
        self.bias = nn.Parameter(torch.empty(vocabulary_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.dim**-0.5)
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.vocabulary_size}, {self.model_dim}, dim={self.dim}, bias={self.bias is not None}"

    def _prepare(self, hidden: Tensor) -> Tensor:
        """Hidden vectors, checked, in the type of the parameters."""
        self._check_hidden(hidden)
        return hidden.to(self.table.dtype)

    def _project(self, hidden: Tensor) -> Tensor:
        """Hidden vectors, checked, as wide as the table."""
        hidden = self._prepare(hidden)
        return hidden if self.projection is None else hidden @ self.projection

    def _scores(self, vectors: Tensor, transform: nn.Module | None = None) -> Tensor:
        """The score of every word, from vectors as wide as the table."""
        scores = widened(F.linear(vectors, self.table, self.bias))
        return scores if transform is None else transform(scores)
