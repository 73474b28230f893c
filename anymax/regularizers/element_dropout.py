"""Dropout of single numbers whose mask costs next to nothing and is drawn again, not kept, for the backward pass.

Shapes: R rows of N entries, one seed per row; outside of vmap there is one row.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.checks import check_shares
from anymax.kernels import dropout as kernel

_NUM_SEEDS = 2**63 - 1


def element_dropout(
    tensor: Tensor, rate: float, *, training: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """Drop each number by chance and divide the others by the share that stays.

    The mask is a function of a seed, the only thing drawn from torch's generator and the only thing saved for the
    backward pass. A number that is dropped gives 0, even if it was NaN.

    Args:
        tensor: floating point, of any shape and layout; the result is contiguous.
        rate: the chance of each number to be dropped, to within 2^-32.
        training: otherwise the tensor itself comes back, as it does at rate 0.
        generator: where the seed comes from, on the tensor's device; by default the device's own.

    Example:
        >>> tensor = torch.ones(1000)
        >>> dropped = anymax.regularizers.element_dropout(tensor, 0.5)
        >>> dropped.unique(), 400 < dropped.count_nonzero() < 600
        (tensor([0., 2.]), tensor(True))
        >>> anymax.regularizers.element_dropout(tensor, 0.5, training=False) is tensor
        True
    """
    check_shares(rate=rate)
    if not tensor.is_floating_point():
        raise TypeError(f"tensor must be floating point, got {tensor.dtype}; convert it with tensor.float()")
    if not training or rate == 0:
        return tensor
    seed = torch.randint(_NUM_SEEDS, (1,), dtype=torch.int64, device=tensor.device, generator=generator)
    return dropout_of_rows(tensor.flatten()[None], seed, rate).reshape(tensor.shape)


def fast_dropout(tensor: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout by what is fastest on the tensor's device: `element_dropout` on a CPU, torch's own elsewhere.

    On a CPU torch's draws a number for each entry, one after the other, and keeps them all for the backward pass.

    Args:
        tensor: floating point, any shape.
        rate: the chance of each number to be dropped.
        training: otherwise the tensor itself comes back.

    Example:
        >>> hidden = torch.ones(1000, requires_grad=True)
        >>> anymax.regularizers.fast_dropout(hidden, 0.2, training=True).sum().backward()
        >>> hidden.grad.unique()
        tensor([0.0000, 1.2500])
    """
    if tensor.is_cpu:
        return element_dropout(tensor, rate, training=training)
    return F.dropout(tensor, rate, training)


def dropout_of_rows(entries_RN: Tensor, seed_R: Tensor, rate: float) -> Tensor:
    """The same for rows with a given seed each, differentiable any number of times."""
    dropped_RN: Tensor = _ElementDropout.apply(entries_RN, seed_R, rate)
    return dropped_RN


class _ElementDropout(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(entries_RN: Tensor, seed_R: Tensor, rate: float) -> Tensor:
        return kernel.dropout(entries_RN, seed_R, rate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        _, seed_R, ctx.rate = inputs
        ctx.save_for_backward(seed_R)

    @staticmethod
    def backward(ctx: Any, grad_RN: Tensor) -> tuple[Tensor, None, None]:
        """Dropout is linear and its matrix diagonal, so the gradient goes the same way, any number of times."""
        (seed_R,) = ctx.saved_tensors
        return _ElementDropout.apply(grad_RN, seed_R, ctx.rate), None, None


# Compiling a vmap inlines the Function's forward; the operator then needs the gradient itself.
torch.library.register_autograd(
    "anymax::dropout", _ElementDropout.backward, setup_context=_ElementDropout.setup_context
)
