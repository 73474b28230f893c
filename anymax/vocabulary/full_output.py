"""The plain output layer: a softmax over one table of all words, with a pointwise transform of the scores if wanted."""

from torch import Tensor, nn

from anymax.checks import check_shares
from anymax.losses import linear_cross_entropy
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
        ignore_index: the target of tokens that do not count.
        memory_budget: bytes of scores that may be alive at once; by default as in `linear_cross_entropy`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        *,
        dim: int | None = None,
        bias: bool = False,
        transform: nn.Module | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        memory_budget: int | None = None,
    ) -> None:
        super().__init__(
            vocabulary_size, model_dim, dim=dim, bias=bias, ignore_index=ignore_index, memory_budget=memory_budget
        )
        check_shares(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing
        self.transform = transform

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return linear_cross_entropy(
            self._project(hidden),
            self.table,
            target,
            self.bias,
            transform=self.transform,
            reduction=reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            memory_budget=self.memory_budget,
        )

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

    def log_probs(self, hidden: Tensor) -> Tensor:
        return self._scores(self._project(hidden), self.transform).log_softmax(-1)
