"""Sparsemax: the point of the simplex nearest to the scores."""

from torch import Tensor

from anymax.mappings.entmax import entmax


def sparsemax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to the nearest distribution along `dim`: entmax at alpha 2.

        argmin over p in the simplex of  |p - scores|^2

    Args:
        scores: floating point, any shape.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Martins and Astudillo 2016.

    Example:
        >>> scores = torch.tensor([2.0, 1.5, 0.5, -1.0])
        >>> anymax.sparsemax(scores)
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
        >>> anymax.sparsemax(scores, mask=torch.tensor([False, True, True, True]))
        tensor([0., 1., 0., 0.])
    """
    return entmax(scores, 2.0, dim=dim, mask=mask)
