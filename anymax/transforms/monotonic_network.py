"""A monotone network of one number: a weighted sum of rising sigmoids, applied to every score.

Shapes: N scores, B of them at a time; H hidden units, C of them at a time.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Scores times units computed at once: 256 KB of float32, which the cache of a core holds.
ALIVE = 2**16


class Units(NamedTuple):
    """The parameters of `monotonic_network`.

    Args:
        steepness: (units,), as are the next two; positive.
        shift: what is added before the sigmoid.
        height: the factor of the sigmoid; positive.
        slope: that of the line, without dimensions; positive.
        offset: what the line adds, without dimensions.

    Example:
        >>> one = torch.ones(1)
        >>> units = anymax.transforms.Units(one, 0 * one, 2 * one, slope=torch.tensor(0.5), offset=torch.tensor(-1.0))
        >>> anymax.transforms.monotonic_network(torch.tensor([-2.0, 0.0, 2.0]), units)
        tensor([-1.7616,  0.0000,  1.7616])
    """

    steepness: Tensor
    shift: Tensor
    height: Tensor
    slope: Tensor
    offset: Tensor


def monotonic_network(scores: Tensor, units: Units, *, chunk: int = 128) -> Tensor:
    """Map every score x to  sum_i height_i sigmoid(steepness_i x + shift_i) + slope x + offset.

    With steepness, height and slope positive it is increasing. Computed in blocks of `chunk` units and a fixed number
    of scores, in forward and backward, so that scores x units numbers are never alive; only double backward keeps all.

    Args:
        scores: any shape; half precision is computed in float32.
        units: the parameters; those of a Module are its `units`.
        chunk: number of units at a time. Under torch.compile all scores are taken at once, and memory grows with their
            number.

    Example:
        >>> units = anymax.MonotonicNetwork(hidden=8, bound=4.0).units
        >>> scores = torch.tensor([-3.0, -1.0, 1.0, 3.0])
        >>> anymax.transforms.monotonic_network(scores, units).diff() > 0
        tensor([True, True, True])
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with scores.float()")
    _check_at_least_one("chunk", chunk, "128 is usual")
    return _MonotonicNetwork.apply(scores, chunk, *units)


class MonotonicNetwork(nn.Module):
    """A learned increasing function of every score, made of sigmoids and a line.

    The form printed in the paper has no line and is therefore bounded, which its own first requirement excludes; the
    line, with a learned positive slope, makes the image unbounded. Positive numbers are softplus of their parameters.

    At the start the function is close to the identity: the line has slope 1/2, and the units, their centres spread
    evenly over [-bound, bound], rise together by as much. Beyond the range the slope is 1/2.

    Args:
        hidden: number of sigmoids.
        bound: half the width of the range the sigmoids cover at the start.
        chunk: number of sigmoids computed at a time; see `monotonic_network`.

    Ganea et al. 2019, "LMS".

    Example:
        >>> network = anymax.MonotonicNetwork(hidden=100)
        >>> layer = anymax.vocabulary.FullOutput(50, 8, transform=network)
        >>> layer(torch.randn(6, 8), torch.arange(6)).backward()  # trains the network with the layer
        >>> network.shift.grad.shape
        torch.Size([100])
    """

    def __init__(self, hidden: int = 1000, *, bound: float = 20.0, chunk: int = 128) -> None:
        super().__init__()
        _check_at_least_one("hidden", hidden, "1000 is usual")
        _check_at_least_one("chunk", chunk, "128 is usual")
        if not 0 < bound < math.inf:
            raise ValueError(f"bound must be a positive finite number, got {bound}; 20.0 suits a language model")
        self.bound = float(bound)
        self.chunk = chunk
        self.raw_steepness = nn.Parameter(torch.empty(hidden))
        self.shift = nn.Parameter(torch.empty(hidden))
        self.raw_height = nn.Parameter(torch.empty(hidden))
        self.raw_slope = nn.Parameter(torch.empty(()))
        self.offset = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        hidden = self.shift.shape[0]
        spacing = 2 * self.bound / hidden
        # Steeper units than this would leave a staircase between their centres.
        steepness = min(1.0, 4 / spacing)
        with torch.no_grad():
            centres_H = (torch.arange(hidden, device=self.shift.device) + 0.5) * spacing - self.bound
            self.shift.copy_(-steepness * centres_H)
            self.raw_steepness.fill_(_softplus_inverse(steepness))
            self.raw_height.fill_(_softplus_inverse(spacing / 2))
            self.raw_slope.fill_(_softplus_inverse(0.5))
            self.offset.fill_(-self.bound / 2)

    @property
    def units(self) -> Units:
        positive = [F.softplus(raw) for raw in (self.raw_steepness, self.raw_height, self.raw_slope)]
        return Units(positive[0], self.shift, positive[1], positive[2], self.offset)

    def forward(self, scores: Tensor) -> Tensor:
        return monotonic_network(scores, self.units, chunk=self.chunk)

    def extra_repr(self) -> str:
        return f"hidden={self.shift.shape[0]}, bound={self.bound}, chunk={self.chunk}"


class _MonotonicNetwork(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, chunk: int, *units: Tensor) -> Tensor:
        x_N, wide = _widen(scores, units)
        result_N = torch.cat([_value(x_B, wide, chunk) for x_B in x_N.split(_block(x_N, chunk))])
        return result_N.reshape(scores.shape).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, ctx.chunk, *units = inputs
        ctx.save_for_backward(scores, *units)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, *units = ctx.saved_tensors
        x_N, wide = _widen(scores, units)
        block = _block(x_N, ctx.chunk)
        blocks = zip(grad.reshape(-1).to(x_N.dtype).split(block), x_N.split(block), strict=True)
        by_block = [_gradients(grad_B, x_B, wide, ctx.chunk) for grad_B, x_B in blocks]
        by_x, *by_units = zip(*by_block, strict=True)
        by_scores = torch.cat(by_x).reshape(scores.shape).to(scores.dtype)
        return by_scores, None, *(sum(by).to(unit.dtype) for by, unit in zip(by_units, units, strict=True))


def _value(x_B: Tensor, units: Units, chunk: int) -> Tensor:
    result_B = units.slope * x_B + units.offset
    for steepness_C1, shift_C1, height_C in _chunks(units, chunk):
        result_B = result_B + height_C @ torch.sigmoid(torch.addcmul(shift_C1, steepness_C1, x_B))
    return result_B


def _gradients(grad_B: Tensor, x_B: Tensor, units: Units, chunk: int) -> tuple[Tensor, ...]:
    """Gradients by the scores and by each field of the units. Can be differentiated, which double backward uses."""
    # An infinite score is flat for every unit and must not turn their gradients into NaN.
    weighted_B = grad_B * torch.where(torch.isinf(x_B), 0, x_B)
    slope_B = units.slope.expand(x_B.shape)
    by_chunk = []
    for steepness_C1, shift_C1, height_C in _chunks(units, chunk):
        sigmoid_CB = torch.sigmoid(torch.addcmul(shift_C1, steepness_C1, x_B))
        rise_CB = sigmoid_CB * (1 - sigmoid_CB)
        slope_B = slope_B + (height_C * steepness_C1[:, 0]) @ rise_CB
        by_chunk.append((height_C * (rise_CB @ weighted_B), height_C * (rise_CB @ grad_B), sigmoid_CB @ grad_B))
    by_steepness_H, by_shift_H, by_height_H = (torch.cat(parts) for parts in zip(*by_chunk, strict=True))
    return grad_B * slope_B, by_steepness_H, by_shift_H, by_height_H, weighted_B.sum(), grad_B.sum()


def _block(x_N: Tensor, chunk: int) -> int:
    """How many scores to take at a time: what stays in the cache, or all where the compiler fuses the steps instead."""
    return max(1, x_N.shape[0] if torch.compiler.is_compiling() else ALIVE // chunk)


def _widen(scores: Tensor, units: Iterable[Tensor]) -> tuple[Tensor, Units]:
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return scores.reshape(-1).to(dtype), Units(*(unit.to(dtype) for unit in units))


def _chunks(units: Units, chunk: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    steepness_H1, shift_H1 = units.steepness[:, None], units.shift[:, None]
    return zip(steepness_H1.split(chunk), shift_H1.split(chunk), units.height.split(chunk), strict=True)


def _softplus_inverse(value: float) -> float:
    return value + math.log(-math.expm1(-value))


def _check_at_least_one(name: str, value: int, advice: str) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}; {advice}")
