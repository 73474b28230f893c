"""Entmax: softmax at alpha 1, sparsemax at alpha 2, heavy tails below 1, for every alpha from 0, which is learnable.

Shapes: R rows, A is R or 1.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active

from anymax.checks import check_alpha_range
from anymax.kernels import entmax as kernel
from anymax.kernels.backend import is_plain
from anymax.kernels.entmax.protocol import alpha_error, alpha_error_of_loss
from anymax.mappings.arguments import (
    COMPUTED_IN,
    check_number,
    check_per_row,
    check_scores,
    computed_in,
    map_last,
    per_row,
)


def entmax(scores: Tensor, alpha: float | Tensor = 1.5, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to a distribution along `dim` that may be sparse.

        argmax over p in the simplex of  <p, scores> + H_alpha(p)
        H_alpha(p) = (1 - sum p^alpha) / (alpha (alpha - 1))

    Args:
        scores: floating point, any shape.
        alpha: at least 0; a number, or a tensor that broadcasts against `scores` with size 1 along `dim`. A tensor gets
            a gradient. 1 is softmax, 2 is sparsemax; the larger, the sparser. Below 1 every entry has a probability,
            and tails are heavier than those of softmax: a power of the score instead of an exponential.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Peters et al. 2019; the gradient by alpha: Correia et al. 2019.

    Example:
        >>> scores = torch.tensor([2.0, 1.5, 0.5, -1.0])
        >>> anymax.entmax(scores, 1.5)
        tensor([0.6712, 0.3240, 0.0048, 0.0000])
        >>> alpha = torch.tensor(1.5, requires_grad=True)
        >>> anymax.entmax(scores, alpha)[0].backward()
        >>> alpha.grad
        tensor(0.2319)
    """
    check_scores(scores, dim, mask)
    is_direct = is_plain(scores, mask, alpha if isinstance(alpha, Tensor) else None)
    alpha_A = alpha_per_row(alpha, scores, dim, is_direct)
    return map_last(lambda scores, mask: entmax_of_last(scores, alpha_A, mask, is_direct), scores, mask, dim)


class Entmax(nn.Module):
    """`entmax` as a Module, with a fixed alpha.

    Args:
        alpha: at least 0; 1 is softmax, 2 is sparsemax.
        dim: the dimension of the entries.

    Example:
        >>> scores = torch.tensor([2.0, 1.5, 0.5, -1.0], requires_grad=True)
        >>> anymax.Entmax(2.0)(scores)[0].backward()
        >>> scores.grad  # nothing for what was not chosen
        tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """

    def __init__(self, alpha: float = 1.5, dim: int = -1) -> None:
        super().__init__()
        if isinstance(alpha, Tensor):
            raise TypeError("alpha must be a number here; LearnedEntmax holds alphas that are learned")
        check_alpha(alpha)
        self.alpha = alpha
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return entmax(scores, self.alpha, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, dim={self.dim}"


class LearnedEntmax(nn.Module):
    """Entmax whose alpha is learned: alpha = low + (high - low) sigmoid(a), by default between softmax and sparsemax.

    Args:
        shape: of the alphas; broadcasts against the scores with size 1 along `dim`. `(heads, 1, 1)` gives each head of
            a (batch, heads, queries, keys) attention its own.
        dim: the dimension of the entries.
        initial: the alpha to start from, strictly between `low` and `high`; by default a is drawn from N(0, 1).
        low: what alpha stays above, at least 0.
        high: what alpha stays below.
        clamp: the least alpha, as 1.01 in the code of the paper: where a gives less, alpha is this and a gets no
            gradient, so that a head may stay there for good. By default there is none.

    Correia et al. 2019.

    Example:
        >>> mapping = anymax.LearnedEntmax((2, 1, 1), initial=1.5)  # one alpha for each of two heads
        >>> mapping.alpha.flatten().tolist()
        [1.5, 1.5]
        >>> mapping(torch.randn(3, 2, 4, 4))[..., 0].sum().backward()
        >>> mapping.pre_alpha.grad.shape
        torch.Size([2, 1, 1])
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (1,),
        dim: int = -1,
        *,
        initial: float | None = None,
        low: float = 1.0,
        high: float = 2.0,
        clamp: float | None = None,
    ) -> None:
        super().__init__()
        check_alpha_range(low, high, initial=initial, clamp=clamp)
        self.dim = dim
        self.low = low
        self.high = high
        self.clamp = clamp
        self.initial = initial
        self.pre_alpha = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.initial is None:
            nn.init.normal_(self.pre_alpha)
        else:
            nn.init.constant_(self.pre_alpha, math.log((self.initial - self.low) / (self.high - self.initial)))

    @property
    def alpha(self) -> Tensor:
        """The current alphas, in `shape`, attached to the parameter."""
        # In half precision the sum would round to an end of the range.
        pre_alpha = self.pre_alpha.to(computed_in(self.pre_alpha.dtype))
        alpha = self.low + (self.high - self.low) * torch.sigmoid(pre_alpha)
        return alpha if self.clamp is None else alpha.clamp(min=self.clamp)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return entmax(scores, self.alpha, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        shown = f"shape={tuple(self.pre_alpha.shape)}, dim={self.dim}, low={self.low:g}, high={self.high:g}"
        return shown if self.clamp is None else f"{shown}, clamp={self.clamp:g}"


def check_alpha(alpha: float, largest: float = math.inf) -> None:
    check_number("alpha", alpha)
    # As a float: a float32 of numpy has no room for the largest double.
    if not (0 <= float(alpha) < math.inf and float(alpha) <= largest):
        raise alpha_error(alpha)


def check_alpha_of_loss(alpha: float | Tensor) -> None:
    """A number above 0; the values of a tensor are checked inside the kernel."""
    if not isinstance(alpha, Tensor) and alpha == 0:
        raise alpha_error_of_loss(alpha)


def alpha_per_row(alpha: float | Tensor, scores: Tensor, dim: int, is_direct: bool) -> Tensor:
    """Alpha as the kernels take it. The values of a tensor are checked inside the kernel, where they are real.

    Args:
        is_direct: whether `is_plain` of the scores.
    """
    dtype = computed_in(scores.dtype)
    if not isinstance(alpha, Tensor):
        if is_direct and type(alpha) is float:
            return _shared_alpha(alpha, dtype)
        check_alpha(alpha, torch.finfo(dtype).max)
        return scores.new_full((1,), alpha, dtype=dtype)
    check_per_row("alpha", alpha, scores, dim)
    return per_row(alpha.to(dtype), scores, dim)


@functools.lru_cache(maxsize=64)
def _shared_alpha(alpha: float, dtype: torch.dtype) -> Tensor:
    """A number, checked, as the kernels take it: made once, since making it takes as long as a small kernel."""
    check_alpha(alpha, torch.finfo(dtype).max)
    # A tensor of the inference mode could not be saved for a later backward.
    with torch.inference_mode(False):
        return torch.full((1,), alpha, dtype=dtype, device="cpu")


def entmax_of_last(scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None, is_direct: bool = False) -> Tensor:
    """Entmax along the last dimension of two or more, differentiable.

    Args:
        is_direct: whether `is_plain` of all three, so that the dispatcher may be left out.
    """
    wants_gradient = torch.is_grad_enabled() and (scores.requires_grad or alpha_A.requires_grad)
    if is_direct and not wants_gradient:
        return kernel.entmax_of_plain(scores, alpha_A, mask)
    if scores.dtype in COMPUTED_IN and alpha_A.requires_grad and wants_gradient:
        # The gradient by alpha is a small difference, which rounded probabilities no longer show.
        return entmax_of_last(scores.to(COMPUTED_IN[scores.dtype]), alpha_A, mask, is_direct).to(scores.dtype)
    function = _EntmaxOfPlain if is_direct and not _are_functorch_transforms_active() else _Entmax
    return function.apply(scores, alpha_A, mask)


class _Entmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha_A: Tensor, mask: Tensor | None) -> Tensor:
        return kernel.entmax(scores, alpha_A, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha_A, mask = inputs
        # In half precision these are rounded, which the gradient by the scores bears.
        ctx.save_for_backward(output, alpha_A, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        probs, alpha_A, mask = ctx.saved_tensors
        backward, backward_both = _backward_of(grad, probs, mask)
        if not ctx.needs_input_grad[1]:
            return backward(grad, probs, alpha_A, mask), None, None
        grad_scores, grad_alpha_R = backward_both(grad, probs, alpha_A, mask)
        return grad_scores, sum_over_rows(grad_alpha_R, alpha_A), None


class _EntmaxOfPlain(torch.autograd.Function):
    """The same without the dispatcher and without `setup_context`, for which torch binds arguments at every call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        probs = kernel.entmax_of_plain(*inputs)
        _Entmax.setup_context(ctx, inputs, probs)
        return probs

    backward = staticmethod(_Entmax.backward)


def _backward_of(grad: Tensor, probs: Tensor, mask: Tensor | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The gradient by the scores, and with that by alpha: plain torch where they may be differentiated again."""
    if torch.is_grad_enabled():
        return kernel.differentiable_backward, kernel.differentiable_backward_both
    if is_plain(grad, probs, mask):
        return kernel.backward_of_plain, kernel.backward_both_of_plain
    return kernel.entmax_backward, kernel.entmax_backward_both


def sum_over_rows(grad_alpha_R: Tensor, alpha_A: Tensor) -> Tensor:
    """The gradient of an alpha that all rows share."""
    return grad_alpha_R.sum(0, keepdim=True) if alpha_A.shape[0] == 1 else grad_alpha_R


# Compiling a vmap inlines the Function's forward; the operator then needs the gradient itself.
torch.library.register_autograd("anymax::entmax", _Entmax.backward, setup_context=_Entmax.setup_context)
