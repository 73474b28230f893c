"""Softmax: what everyone uses, with a mask and without NaN where nothing is left to choose."""

from torch import Tensor

from anymax.mappings.entmax import entmax


def softmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to a distribution along `dim` with no zeros: entmax at alpha 1.

    Differs from `torch.softmax` in one thing: a row of minus infinities gives zeros, not NaN.

    Args:
        scores: floating point, any shape.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Example:
        >>> scores = torch.tensor([2.0, 1.5, 0.5, -1.0])
        >>> anymax.softmax(scores, mask=scores > 0)
        tensor([0.5465, 0.3315, 0.1220, 0.0000])
        >>> anymax.softmax(scores, mask=scores > 9)
        tensor([0., 0., 0., 0.])
    """
    return entmax(scores, 1.0, dim=dim, mask=mask)
