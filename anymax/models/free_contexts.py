"""Contexts that are vectors of their own: what an output layer can express, apart from how contexts are computed.

Shapes: N contexts, B of them at a time, M words, D numbers in a vector.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.losses import entmax_loss
from anymax.vocabulary import FullOutput, MixtureOutput, OutputLayer, SparseOutput


class FreeContexts(nn.Module):
    """A free vector for every context, and an output layer that reads it.

    Args:
        num_contexts: number of contexts.
        output: as wide as the vectors; a full, a mixture or a sparse one, whose table has the same width.

    Ganea et al. 2019.
    """

    def __init__(self, num_contexts: int, output: OutputLayer) -> None:
        super().__init__()
        check_counts(num_contexts=num_contexts)
        if not isinstance(output, FullOutput | MixtureOutput | SparseOutput) or output.dim != output.model_dim:
            raise ValueError(
                "output must be a FullOutput, MixtureOutput or SparseOutput with a table as wide as its model, "
                f"got {output}; leave its dim out"
            )
        self.vectors = nn.Parameter(torch.empty(num_contexts, output.model_dim))
        self.output = output
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vectors)

    def forward(self, contexts: Tensor, target: Tensor) -> Tensor:
        """The loss of distributions over all words, summed over contexts.

        The cross-entropy -<target, log p>, or for a sparse output the Fenchel-Young loss of its entmax.

        Args:
            contexts: their numbers, (B,).
            target: what their distributions should be, (B, M).
        """
        hidden_BD = self.vectors[contexts]
        if isinstance(self.output, SparseOutput):
            scores_BM = F.linear(hidden_BD, self.output.table, self.output.bias)
            return entmax_loss(scores_BM, target.to(scores_BM.dtype), self.output.alpha, reduction="sum")
        log_probs_BM = self.output.log_probs(hidden_BD)
        return -(target.to(log_probs_BM.dtype) * log_probs_BM).sum()

    def log_probs(self) -> Tensor:
        """The log-probability of every word in every context, (N, M); -inf where a sparse output gives zero."""
        return self.output.log_probs(self.vectors)


def circle(modes: Tensor, num_words: int, *, radius: float = 1.0) -> FreeContexts:
    """A model with two numbers for each vector that gives every context the mode it should have, in float64.

    Words stand evenly on the unit circle, and a context stands `radius` times as far out as its mode: the product with
    any other word is smaller by the cosine of the angle between them. So no number of words is too large for the modes
    to be right in two dimensions, whatever the rank of the matrix of log-probabilities.

    Args:
        modes: the likeliest word of every context, (N,).
        radius: how much the mode is preferred.
    """
    check_counts(num_words=num_words)
    if not 0 < radius < math.inf:
        raise ValueError(f"radius must be a positive finite number, got {radius}")
    angles_M = torch.arange(num_words, dtype=torch.float64) * (2 * math.pi / num_words)
    words_MD = torch.stack([angles_M.cos(), angles_M.sin()], dim=1)
    model = FreeContexts(len(modes), FullOutput(num_words, 2)).double()
    assert isinstance(model.output, FullOutput)
    with torch.no_grad():
        model.output.table.copy_(words_MD)
        model.vectors.copy_(radius * words_MD[modes])
    return model
