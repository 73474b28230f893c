"""The mixture of softmaxes: several softmaxes over one table, mixed by a prior that depends on the hidden vector.

A single softmax over d-dimensional vectors gives log-probabilities of rank d + 1 at most; a mixture is not so bound.
"""

import torch
from torch import Tensor, nn

from anymax.checks import check_counts, check_shares
from anymax.losses import linear_mixture_loss
from anymax.vocabulary.output import TableOutput, refuse_label_smoothing, widened


class MixtureOutput(TableOutput):
    """A mixture of softmaxes over all words.

        p(word) = sum over k of  softmax(prior(hidden))_k  softmax(transform(table latent_k + bias))_word
        latent = tanh(linear(hidden)), one vector for each of the experts

    Its log-probabilities are exact: nothing is added to a probability before the logarithm.

    Args:
        vocabulary_size: number of words.
        model_dim: size of a hidden vector.
        num_experts: number of softmaxes that are mixed.
        dim: width of the table and of each latent; by default that of the model.
        bias: whether every word has a number added to its score, the same for all experts.
        latent_dropout: applied to the latents of all experts side by side, num_experts * dim wide: a rate, or a Module
            such as a dropout whose mask is the same for all positions of a sequence.
        transform: a Module that maps every score by an increasing function before each softmax, such as
            `anymax.PLIF()`.
        label_smoothing: must be 0; an argument so that a setting meant for another layer is refused, not ignored.
        ignore_index: the target of tokens that do not count.
        memory_budget: bytes of scores that may be alive at once; by default as in `linear_cross_entropy`.

    Yang et al. 2018.

    Example:
        >>> layer = anymax.vocabulary.MixtureOutput(50, 2, num_experts=3)
        >>> hidden, target = torch.randn(20, 2), torch.arange(20)
        >>> layer(hidden, target).backward()  # the loss
        >>> torch.linalg.matrix_rank(layer.log_probs(hidden)) > 3  # which is the most that one softmax has
        tensor(True)
    """

    forward_methods = (*TableOutput.forward_methods, "scores", "weights")

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        *,
        num_experts: int,
        dim: int | None = None,
        bias: bool = True,
        latent_dropout: float | nn.Module = 0.0,
        transform: nn.Module | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        memory_budget: int | None = None,
    ) -> None:
        refuse_label_smoothing("MixtureOutput", label_smoothing)
        check_counts(num_experts=num_experts)
        super().__init__(
            vocabulary_size,
            model_dim,
            dim=dim,
            bias=bias,
            projected=False,
            ignore_index=ignore_index,
            memory_budget=memory_budget,
        )
        self.num_experts = num_experts
        self.prior = nn.Linear(model_dim, num_experts, bias=False)
        self.latent = nn.Linear(model_dim, num_experts * self.dim)
        if not isinstance(latent_dropout, nn.Module):
            check_shares(latent_dropout=latent_dropout)
            latent_dropout = nn.Dropout(latent_dropout)
        self.latent_dropout = latent_dropout
        self.transform = transform

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        hidden = self._prepare(hidden)
        return linear_mixture_loss(
            self._experts(hidden),
            self.prior(hidden),
            self.table,
            target,
            self.bias,
            transform=self.transform,
            reduction=reduction,
            ignore_index=self.ignore_index,
            memory_budget=self.memory_budget,
        )

    def log_probs(self, hidden: Tensor) -> Tensor:
        """The log-probability of every word. One expert at a time, so that without gradients two rows are alive."""
        hidden = self._prepare(hidden)
        log_prior = widened(self.prior(hidden)).log_softmax(-1)
        total: Tensor | None = None
        for k, vectors in enumerate(self._experts(hidden).unbind(-2)):
            joint = log_prior[..., k, None] + self._scores(vectors, self.transform).log_softmax(-1)
            total = joint if total is None else torch.logaddexp(total, joint)
        assert total is not None
        return total

    def weights(self, hidden: Tensor) -> Tensor:
        """The share that each expert has of the mixture, in the leading shape of `hidden`, then num_experts."""
        return widened(self.prior(self._prepare(hidden))).softmax(-1)

    def scores(self, hidden: Tensor) -> Tensor:
        """The score that each expert gives every word, before the transform: the leading shape, experts, words."""
        return self._scores(self._experts(self._prepare(hidden)))

    def _experts(self, hidden: Tensor) -> Tensor:
        """The latent vector of every expert: the leading shape of `hidden`, then num_experts, then dim."""
        latents = self.latent_dropout(torch.tanh(self.latent(hidden)))
        return latents.unflatten(-1, (self.num_experts, self.dim))
