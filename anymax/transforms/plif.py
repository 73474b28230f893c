"""PLIF: a piecewise linear increasing function of every score, learned piece by piece.

Applied before a softmax it lifts the rank bottleneck of a linear output layer at the price of a table lookup.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active

from anymax.kernels import plif as kernel
from anymax.kernels.backend import is_plain

# softplus of this is 1.
UNIT = math.log(math.e - 1)


def plif(scores: Tensor, slopes: Tensor, *, bound: float) -> Tensor:
    """Map every score by the function with f(-bound) = -bound and the given slopes on equal pieces of [-bound, bound].

    Beyond the ends it continues with the slope of the end piece: with positive slopes it is increasing and unbounded.
    Sums over pieces are taken in float64. Memory for the backward is the scores themselves and the slopes.

    Args:
        scores: any shape; half precision is computed in float32.
        slopes: one per piece; usually positive, and then +-inf stays +-inf. NaN stays NaN and spreads nowhere else.
        bound: half the width of the range, a positive number.

    Ganea et al. 2019.

    Example:
        >>> slopes = torch.tensor([0.5, 2.0])  # on [-1, 0] and on [0, 1]
        >>> anymax.transforms.plif(torch.tensor([-1.0, 0.0, 1.0, 2.0]), slopes, bound=1.0)
        tensor([-1.0000, -0.5000,  1.5000,  3.5000])
    """
    _check(scores, slopes, bound)
    if not is_plain(scores, slopes) or _are_functorch_transforms_active():
        return _Plif.apply(scores, slopes, bound)
    if torch.is_grad_enabled() and (scores.requires_grad or slopes.requires_grad):
        return _PlifOfPlain.apply(scores, slopes, bound)
    return kernel.plif_of_plain(scores, slopes, bound)


class PLIF(nn.Module):
    """A learned piecewise linear increasing function, the identity at the start.

    Slopes are softplus of the parameter, so any value of it gives an increasing function. There is one parameter per
    piece; the parameter counts of Ganea et al. 2019 have two per knot, for the slopes and for their sums.

    Args:
        pieces: number of pieces in [-bound, bound].
        bound: scores beyond it only train the two end pieces; `num_outside` counts them.
        random_start: draw the parameter from a normal distribution of deviation 1 around unit slope.

    Example:
        >>> transform = anymax.PLIF(pieces=1000, bound=10.0)
        >>> layer = anymax.vocabulary.FullOutput(50, 8, transform=transform)
        >>> layer(torch.randn(6, 8), torch.arange(6)).backward()  # trains the slopes with the layer
        >>> transform.weight.grad.shape
        torch.Size([1000])
    """

    def __init__(self, pieces: int = 100_000, bound: float = 20.0, *, random_start: bool = False) -> None:
        super().__init__()
        if pieces < 1:
            raise ValueError(f"pieces must be at least 1, got {pieces}; 100_000 is usual")
        _check_bound(bound)
        self.bound = float(bound)
        self.random_start = random_start
        self.weight = nn.Parameter(torch.empty(pieces))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.normal_(UNIT, 1) if self.random_start else self.weight.fill_(UNIT)

    @property
    def slopes(self) -> Tensor:
        """The slope of every piece, in float32 or float64."""
        return F.softplus(self.weight if self.weight.dtype == torch.float64 else self.weight.float())

    def forward(self, scores: Tensor) -> Tensor:
        return plif(scores, self.slopes, bound=self.bound)

    def num_outside(self, scores: Tensor) -> Tensor:
        """How many scores lie outside [-bound, bound], as a tensor without dimensions. If many do, raise `bound`."""
        return (scores.abs() > self.bound).sum()

    def extra_repr(self) -> str:
        start = ", random_start=True" if self.random_start else ""
        return f"pieces={self.weight.shape[0]}, bound={self.bound}{start}"


class _Plif(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, slopes: Tensor, bound: float) -> Tensor:
        return kernel.plif(scores, slopes, bound)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        scores, slopes, ctx.bound = inputs
        ctx.save_for_backward(scores, slopes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scores, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            # The result will be differentiated again, which only plain operations allow.
            return *kernel.differentiable_backward_both(grad, scores, slopes, ctx.bound), None
        direct = is_plain(grad, scores, slopes)
        if ctx.needs_input_grad[1]:
            backward_both = kernel.backward_both_of_plain if direct else kernel.plif_backward_both
            return *backward_both(grad, scores, slopes, ctx.bound), None
        backward = kernel.backward_of_plain if direct else kernel.plif_backward
        return backward(grad, scores, slopes, ctx.bound), None, None


class _PlifOfPlain(torch.autograd.Function):
    """The same without the dispatcher and without `setup_context`, for which torch binds arguments at every call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        result = kernel.plif_of_plain(*inputs)
        _Plif.setup_context(ctx, inputs, result)
        return result

    backward = staticmethod(_Plif.backward)


# Compiling a vmap inlines the Function's forward; the operator then needs the gradient itself.
torch.library.register_autograd("anymax::plif", _Plif.backward, setup_context=_Plif.setup_context)


def _check(scores: Tensor, slopes: Tensor, bound: float) -> None:
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with scores.float()")
    if not slopes.is_floating_point():
        raise TypeError(f"slopes must be floating point, got {slopes.dtype}; convert them with slopes.float()")
    if slopes.dim() != 1 or slopes.shape[0] < 1:
        raise ValueError(
            f"slopes must be a vector with one entry per piece, got shape {tuple(slopes.shape)}; "
            "call plif once for every function"
        )
    if slopes.device != scores.device:
        raise ValueError(
            f"slopes must be on the device of the scores, {scores.device}, got {slopes.device}; move one of them"
        )
    _check_bound(bound)


def _check_bound(bound: float) -> None:
    if not 0 < bound < math.inf:
        raise ValueError(f"bound must be a positive finite number, got {bound}; 20.0 suits scores of a language model")
