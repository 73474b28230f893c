"""What the linear losses are given, checked before any work."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anymax.losses.blocks import Piece
from anymax.losses.targets import REDUCTIONS
from anymax.mappings.arguments import check_device


def check_options(reduction: str, label_smoothing: float, memory_budget: int | None) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    if memory_budget is not None and (isinstance(memory_budget, bool) or not isinstance(memory_budget, int)):
        came = type(memory_budget).__name__
        raise TypeError(f"memory_budget must be a whole number of bytes, got {came}; leave it out for the default")


def check_pieces(loss: str, pieces: Sequence[Piece[Tensor]], target: Tensor, group: int | None) -> None:
    """Tensors fit each other and the target; its values are checked where they are read."""
    if not isinstance(target, Tensor) or target.dtype not in (torch.int64, torch.int32):
        came = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"target must be a tensor of classes, int64 or int32, got {came}; {loss} takes no distributions"
        )
    # What the caller knows the hidden states by.
    name = "hidden" if group is None else "experts"
    leading = tuple(target.shape) if group is None else (*target.shape, group)
    for piece in pieces:
        check_floating_point(name, piece.hidden)
        check_floating_point("linear_weight", piece.weight)
        if piece.bias is not None:
            check_floating_point("linear_bias", piece.bias)
        _check_shapes(name, piece, leading)
        _check_devices(name, piece, target)
    _check_dtypes(name, pieces)


def check_floating_point(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {came}; convert with .float()")


def _check_shapes(name: str, piece: Piece[Tensor], leading: tuple[int, ...]) -> None:
    hidden, weight, bias = piece
    if weight.dim() != 2 or weight.shape[0] == 0:
        raise ValueError(
            f"linear_weight must be (classes, dimension) with at least one class, got {tuple(weight.shape)}"
        )
    if hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name} must end in the dimension of linear_weight, {weight.shape[1]}, got shape {tuple(hidden.shape)}"
        )
    if tuple(hidden.shape[:-1]) != leading:
        raise ValueError(
            f"{name} must have the shape of target and what a target has of its own, {(*leading, weight.shape[1])}, "
            f"got {tuple(hidden.shape)}"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"linear_bias must have one entry per class, {weight.shape[0]}, got shape {tuple(bias.shape)}")


def _check_devices(name: str, piece: Piece[Tensor], target: Tensor) -> None:
    others = {"linear_weight": piece.weight, "linear_bias": piece.bias, "target": target}
    for what, other in others.items():
        if other is not None:
            check_device(what, other, piece.hidden, name)


def _check_dtypes(name: str, pieces: Sequence[Piece[Tensor]]) -> None:
    dtypes = [tensor.dtype for piece in pieces for tensor in piece if tensor is not None]
    if len(set(dtypes)) > 1 and not torch.is_autocast_enabled(pieces[0].hidden.device.type):
        raise TypeError(
            f"{name}, linear_weight and linear_bias must have one dtype, got {', '.join(map(str, dtypes))}; "
            "convert some of them or use torch.autocast"
        )
