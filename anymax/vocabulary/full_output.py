"""The plain output layer: a softmax over one table of all words, with a pointwise transform of the scores if wanted."""

import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_shares
from anymax.losses import linear_cross_entropy
from anymax.vocabulary.fixed_input import check_index
from anymax.vocabulary.output import TableOutput


class FullOutput(TableOutput):
    """Softmax over all words: every word has a vector, and its score is the product with the hidden vector.

    Args:
        vocabulary_size: number of words.
        model_dim: size of a hidden vector.
        dim: width of the table, with a projection before it where it differs from model_dim.
        bias: whether every word has a number added to its score.
        transform: a Module that maps every score by an increasing function before the softmax: `anymax.PLIF()`,
            `anymax.Sig()` or `anymax.MonotonicNetwork()`. It is trained with the layer.
        label_smoothing: share of the target that is spread evenly over all words. Log-probabilities are never
            smoothed, so take `log_prob` for a perplexity.
        unsmoothed: the id of a word that gets none of that share, as padding; then the target gets none of it either,
            and the others share it equally, as in OpenNMT. By default there is no such word.
        ignore_index: the target of tokens that do not count.
        memory_budget: bytes of scores that may be alive at once; by default as in `linear_cross_entropy`.

    Example:
        >>> layer = anymax.vocabulary.FullOutput(1000, 16, label_smoothing=0.1)
        >>> hidden, target = torch.randn(4, 16), torch.tensor([5, 7, 0, -100])  # the last does not count
        >>> layer(hidden, target).backward()  # the loss
        >>> layer.log_prob(hidden, target).shape, layer.topk(hidden, 3).words.shape
        (torch.Size([4]), torch.Size([4, 3]))
    """

    forward_methods = (*TableOutput.forward_methods, "scores")

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        *,
        dim: int | None = None,
        bias: bool = False,
        transform: nn.Module | None = None,
        label_smoothing: float = 0.0,
        unsmoothed: int | None = None,
        ignore_index: int = -100,
        memory_budget: int | None = None,
    ) -> None:
        super().__init__(
            vocabulary_size, model_dim, dim=dim, bias=bias, ignore_index=ignore_index, memory_budget=memory_budget
        )
        check_shares(label_smoothing=label_smoothing)
        check_index("unsmoothed", unsmoothed, vocabulary_size)
        if unsmoothed is not None:
            _check_unsmoothed(vocabulary_size, label_smoothing, transform)
        self.label_smoothing = label_smoothing
        self.unsmoothed = unsmoothed
        self.transform = transform

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        vectors = self._project(hidden)
        # What each word gets of the share.
        part = self.label_smoothing / (self.vocabulary_size - (0 if self.unsmoothed is None else 2))
        loss = linear_cross_entropy(
            vectors,
            self.table,
            target,
            self.bias,
            transform=self.transform,
            reduction=reduction,
            ignore_index=self.ignore_index,
            label_smoothing=part * self.vocabulary_size,
            memory_budget=self.memory_budget,
        )
        if self.unsmoothed is None or part == 0:
            return loss
        return loss + part * self._unsmoothing(vectors, target, self.unsmoothed, reduction)

    def _unsmoothing(self, vectors: Tensor, target: Tensor, word: int, reduction: str) -> Tensor:
        """What takes a part from a word and from the target: the score of the word less that of the target.

        The even loss has part * (log p(word) + log p(target)) too much, and 2 * part * log p(target) too little.
        """
        is_counted = target != self.ignore_index
        wanted = target.masked_fill(~is_counted, word)
        excess = (vectors * (self.table[word] - F.embedding(wanted, self.table))).sum(-1)
        if self.bias is not None:
            excess = excess + self.bias[word] - self.bias[wanted]
        if reduction == "none":
            return excess
        return excess.sum() if reduction == "sum" else excess.sum() / is_counted.sum()

    def log_prob(self, hidden: Tensor, target: Tensor) -> Tensor:
        return -linear_cross_entropy(
            self._project(hidden),
            self.table,
            target,
            self.bias,
            transform=self.transform,
            reduction="none",
            ignore_index=self.ignore_index,
            memory_budget=self.memory_budget,
        )

    def scores(self, hidden: Tensor) -> Tensor:
        """The score of every word before the transform, in the leading shape of `hidden`."""
        return self._scores(self._project(hidden))

    def log_probs(self, hidden: Tensor) -> Tensor:
        return self._scores(self._project(hidden), self.transform).log_softmax(-1)


def _check_unsmoothed(vocabulary_size: int, label_smoothing: float, transform: nn.Module | None) -> None:
    if transform is not None:
        raise ValueError(
            f"unsmoothed must be None with a transform, got {type(transform).__name__}; leave one of the two out"
        )
    if label_smoothing * vocabulary_size > vocabulary_size - 2:
        raise ValueError(
            f"label_smoothing must be at most {(vocabulary_size - 2) / vocabulary_size:g} for {vocabulary_size} words "
            f"of which one is unsmoothed, got {label_smoothing}"
        )
