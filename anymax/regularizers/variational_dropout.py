"""Variational dropout: one mask for all positions of a sequence, so that a unit is silent from its start to its end."""

import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_shares


def variational_dropout(vectors: Tensor, rate: float, *, dim: int, training: bool) -> Tensor:
    """Drop numbers by chance, the same ones at all positions along `dim`; every call draws anew.

    Args:
        vectors: any shape; each sample along the other dimensions gets a mask of its own.
        rate: the probability of each element to be dropped; the others are divided by 1 - rate.
        dim: where the positions are.
        training: otherwise the vectors themselves come back.

    Gal and Ghahramani 2016.

    Example:
        >>> vectors = torch.ones(3, 5, 100)  # batch, positions, units
        >>> dropped = anymax.regularizers.variational_dropout(vectors, 0.5, dim=1, training=True)
        >>> (dropped == dropped[:, :1]).all(), (dropped == dropped[:1]).all()  # one mask per sequence
        (tensor(True), tensor(False))
    """
    check_shares(rate=rate)
    if not training or rate == 0:
        return vectors
    if not -vectors.dim() <= dim < vectors.dim():
        raise ValueError(
            f"dim must be one of the {vectors.dim()} dimensions of vectors, of shape {tuple(vectors.shape)}, got {dim}"
        )
    shape = list(vectors.shape)
    shape[dim] = 1
    return vectors * F.dropout(vectors.new_ones(shape), rate)


class VariationalDropout(nn.Module):
    """`variational_dropout` as a Module, on in training.

    Args:
        rate: the probability of each element to be dropped.
        dim: where the positions are.

    Example:
        >>> dropout = anymax.regularizers.VariationalDropout(0.5, dim=1)
        >>> dropped = dropout(torch.ones(3, 5, 100))
        >>> (dropped == dropped[:, :1]).all()
        tensor(True)
    """

    def __init__(self, rate: float, *, dim: int) -> None:
        super().__init__()
        check_shares(rate=rate)
        self.rate = rate
        self.dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        return variational_dropout(vectors, self.rate, dim=self.dim, training=self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, dim={self.dim}"
