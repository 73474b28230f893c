"""Sig-softmax: softmax with a nonlinearity that escapes the softmax bottleneck without a parameter."""

from torch import Tensor

from anymax.mappings.arguments import prepare
from anymax.mappings.softmax import softmax
from anymax.transforms.sig import sig


def sigsoftmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to the distribution proportional to exp(scores) sigmoid(scores) along `dim`.

    Unlike the others it changes when a constant is added to all scores.

    Kanai et al. 2018.
    """
    prepared = prepare(scores, dim, mask)
    return softmax(sig(prepared), dim=dim).to(scores.dtype)
