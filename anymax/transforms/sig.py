"""Sig: scores plus their log-sigmoid, of which softmax makes sig-softmax."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sig(scores: Tensor, *, shift: float = 0.0, slope: float = 2.0) -> Tensor:
    """Bend scores with one smooth knee, so that softmax of the result can exceed the rank of the scores.

        scores + (slope - 1) logsigmoid(scores - shift)

    It rises with `slope` far below `shift` and with 1 far above. The defaults give sig-softmax, exp(z) sigmoid(z)
    normalised; other values give its generalisation. Half precision is computed in float32.

    Args:
        scores: any shape.
        shift: where the knee is.
        slope: positive, so that the order of the scores is kept.

    Kanai et al. 2018.

    Example:
        >>> scores = torch.tensor([-4.0, 0.0, 4.0])
        >>> anymax.transforms.sig(scores)
        tensor([-8.0182, -0.6931,  3.9819])
        >>> torch.allclose(anymax.transforms.sig(scores).softmax(-1), anymax.sigsoftmax(scores))
        True
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with scores.float()")
    _check_slope(slope)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    return (wide + (slope - 1) * F.logsigmoid(wide - shift)).to(scores.dtype)


class Sig(nn.Module):
    """`sig` as a Module; its arguments are fixed numbers.

    Args:
        shift: where the knee is.
        slope: positive, as in `sig`.

    Example:
        >>> layer = anymax.vocabulary.FullOutput(50, 2, transform=anymax.Sig())
        >>> log_probs = layer.log_probs(torch.randn(20, 2))
        >>> torch.linalg.matrix_rank(log_probs) > 3  # which is the most that a plain softmax of 2 numbers has
        tensor(True)
    """

    def __init__(self, *, shift: float = 0.0, slope: float = 2.0) -> None:
        super().__init__()
        _check_slope(slope)
        self.shift = shift
        self.slope = slope

    def forward(self, scores: Tensor) -> Tensor:
        return sig(scores, shift=self.shift, slope=self.slope)

    def extra_repr(self) -> str:
        return f"shift={self.shift}, slope={self.slope}"


def _check_slope(slope: float) -> None:
    if not 0 < slope < math.inf:
        raise ValueError(f"slope must be a positive finite number, got {slope}; 2.0 gives sig-softmax")
