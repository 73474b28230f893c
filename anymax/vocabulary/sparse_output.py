"""The sparse output layer: entmax over one table of all words, trained with the entmax loss.

Shapes: B tokens at a time, D the model's dimension.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anymax.checks import check_shares
from anymax.losses import linear_entmax_loss
from anymax.mappings.entmax import Entmax, LearnedEntmax, check_alpha_of_loss
from anymax.vocabulary.output import TableOutput


class SparseOutput(TableOutput):
    """Entmax over all words: most words get probability zero.

    The loss is the Fenchel-Young loss of entmax, whose gradient by the scores is entmax minus the target. It is not a
    negative log-probability: that is infinite for every word outside the support, so a perplexity does not exist, and
    `log_prob` and `log_probs` give -inf there.

    Args:
        vocabulary_size: number of words.
        model_dim: size of a hidden vector.
        alpha: above 0; 1 is softmax, 2 is sparsemax. If it is learned, where it starts, strictly between 1 and 2.
        learn_alpha: whether alpha is learned, as 1 + sigmoid(a), so that it stays between 1 and 2.
        dim: width of the table, with a projection before it where it differs from model_dim.
        bias: whether every word has a number added to its score.
        label_smoothing: share of the target that is spread evenly over all words.
        ignore_index: the target of tokens that do not count.
        memory_budget: bytes of scores that may be alive at once; by default as in `linear_cross_entropy`.

    Peters et al. 2019.

    Example:
        >>> layer = anymax.vocabulary.SparseOutput(1000, 16, alpha=1.5)
        >>> hidden = torch.randn(4, 16)
        >>> layer(hidden, torch.tensor([5, 7, 0, 8])).backward()  # the entmax loss
        >>> (layer.log_probs(hidden) > -torch.inf).sum(-1) < 100  # the words with a probability
        tensor([True, True, True, True])
    """

    is_likelihood = False

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        *,
        alpha: float = 1.5,
        learn_alpha: bool = False,
        dim: int | None = None,
        bias: bool = False,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        memory_budget: int | None = None,
    ) -> None:
        super().__init__(
            vocabulary_size, model_dim, dim=dim, bias=bias, ignore_index=ignore_index, memory_budget=memory_budget
        )
        check_shares(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing
        if learn_alpha and not 1 < alpha < 2:
            raise ValueError(
                f"alpha must start strictly between 1 and 2 to be learned, got {alpha}; without learn_alpha it is fixed"
            )
        check_alpha_of_loss(alpha)
        self.mapping = LearnedEntmax(initial=alpha) if learn_alpha else Entmax(alpha)

    @property
    def alpha(self) -> float | Tensor:
        """The current alpha: a number, or a tensor with one entry if it is learned."""
        return self.mapping.alpha

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return linear_entmax_loss(
            self._project(hidden),
            self.table,
            target,
            self.alpha,
            self.bias,
            reduction=reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            memory_budget=self.memory_budget,
        )

    def log_probs(self, hidden: Tensor) -> Tensor:
        """The log-probability of every word, -inf outside the support."""
        return _log(self._probs(hidden))

    def log_prob(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The log-probability of one word per token: -inf outside the support, 0 where the target is ignored.

        Computed for a few tokens at a time, and once more for the gradient.
        """
        self._check_hidden(hidden)
        self._check_target(hidden, target)
        counted = target != self.ignore_index
        blocks = self._row_blocks(hidden)
        words = torch.where(counted, target, 0).long().reshape(-1, 1).split([len(block) for block in blocks])
        # The scores of a block are computed again for its gradient, instead of being kept.
        parts = [
            checkpoint(self._log_prob_rows, hidden_BD, words_B1, use_reentrant=False, preserve_rng_state=False)
            for hidden_BD, words_B1 in zip(blocks, words, strict=True)
        ]
        return torch.where(counted, torch.cat(parts).reshape(target.shape), 0)

    def _log_prob_rows(self, hidden_BD: Tensor, words_B1: Tensor) -> Tensor:
        return _log(self._probs(hidden_BD).gather(1, words_B1)[:, 0])

    def _probs(self, hidden: Tensor) -> Tensor:
        return self.mapping(self._scores(self._project(hidden)))


def _log(probs: Tensor) -> Tensor:
    """The logarithm, with a gradient of zero where it is -inf."""
    outside = probs == 0
    return torch.where(outside, -torch.inf, torch.where(outside, 1, probs).log())
