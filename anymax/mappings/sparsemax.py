"""Sparsemax: the point of the simplex nearest to the scores."""

from torch import Tensor

from anymax.mappings.entmax import entmax


def sparsemax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to the nearest distribution along `dim`: entmax at alpha 2.

        argmin over p in the simplex of  |p - scores|^2

    Martins and Astudillo 2016.
    """
    return entmax(scores, 2.0, dim=dim, mask=mask)
