"""Sig-softmax: softmax with a nonlinearity that escapes the softmax bottleneck without a parameter."""

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.mappings.arguments import largest, prepare
from anymax.mappings.softmax import softmax


def sigsoftmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to the distribution proportional to exp(scores) sigmoid(scores) along `dim`.

    Unlike softmax it changes when a constant is added to all scores.

    Args:
        scores: floating point, any shape.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Kanai et al. 2018.

    Example:
        >>> anymax.sigsoftmax(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.5761, 0.3243, 0.0908, 0.0088])
    """
    prepared = prepare(scores, dim, mask)
    top = largest(prepared, dim)
    top = torch.where(top == -torch.inf, 0, top)
    # `sig`, less its largest value in each row: the sum of its two terms may be too large for a float.
    shifted = (prepared - top) + (F.logsigmoid(prepared) - F.logsigmoid(top))
    return softmax(shifted, dim=dim).to(scores.dtype)
