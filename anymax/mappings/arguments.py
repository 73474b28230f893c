"""What every mapping does with its arguments: check them, apply the mask, and lay the scores out as rows."""

import numbers
from collections.abc import Callable

import torch
from torch import Tensor

from anymax.kernels.backend import is_plain
from anymax.kernels.rows import COMPUTED_IN as COMPUTED_IN
from anymax.kernels.rows import computed_in as computed_in


def prepare(scores: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Scores checked, in the precision they are computed in, and -inf where the mask is false."""
    check_scores(scores, dim, mask)
    scores = scores.to(computed_in(scores.dtype))
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def check_scores(scores: Tensor, dim: int, mask: Tensor | None) -> None:
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a tensor, got {type(scores).__name__}; wrap it with torch.as_tensor")
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with .float()")
    check_dim(scores, dim)
    if mask is not None:
        check_mask(mask, scores)


def check_dim(scores: Tensor, dim: int) -> None:
    if not isinstance(dim, int):
        raise TypeError(f"dim must be an integer, got {type(dim).__name__}")
    if not -scores.dim() <= dim < scores.dim():
        raise ValueError(
            f"dim must be one of the {scores.dim()} dimensions of scores, of shape {tuple(scores.shape)}, got {dim}"
        )


def check_mask(mask: Tensor, scores: Tensor) -> None:
    check_boolean(mask, "an entry may be chosen")
    check_device("mask", mask, scores)
    if not _broadcasts(mask.shape, scores.shape):
        raise ValueError(f"mask must broadcast to the shape of scores {tuple(scores.shape)}, got {tuple(mask.shape)}")


def check_boolean(mask: Tensor, meaning: str) -> None:
    """A mask is boolean; `meaning` completes "true where"."""
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return
    if not isinstance(mask, Tensor):
        # Without a dtype, since torch.bool would turn an additive mask into its opposite.
        got, fix = type(mask).__name__, "make one with torch.tensor(mask)"
    elif mask.is_floating_point():
        # Not mask.bool(), which is true where an additive mask forbids.
        got, fix = str(mask.dtype), "pass mask == 0 if it is additive, of 0 and -inf, or mask == 1 if it is of 1 and 0"
    else:
        got, fix = str(mask.dtype), "pass mask == 1 if it is of 1 and 0"
    raise TypeError(f"mask must be a boolean tensor, true where {meaning}, got {got}; {fix}")


def check_device(name: str, value: Tensor, other: Tensor, other_name: str = "scores") -> None:
    if value.device != other.device:
        raise ValueError(
            f"{name} must be on the device of {other_name}, {other.device}, got {value.device}; move it with .to"
        )


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")


def check_per_row(name: str, value: Tensor, scores: Tensor, dim: int) -> None:
    """A per-row parameter is real, broadcasts against the scores and has size 1 along `dim`."""
    check_device(name, value, scores)
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of real numbers, got {value.dtype}")
    shape = row_shape(scores, dim)
    if not _broadcasts(value.shape, torch.Size(shape)):
        raise ValueError(
            f"{name} must broadcast against scores with size 1 along dim {dim}, that is to {tuple(shape)}, "
            f"got {tuple(value.shape)}; per-head values over (batch, heads, queries, keys) have shape (heads, 1, 1)"
        )


def check_values(name: str, rule: str, value: Tensor, is_right: Callable[[Tensor], Tensor], *, got: str = "{}") -> None:
    """Check a tensor argument where its entries can be read: not while tracing, under vmap or on an accelerator.

    Args:
        got: how the error shows the first wrong entry.
    """
    if not is_plain(value):
        return
    right = is_right(value.detach())
    if not bool(right.all()):
        raise ValueError(f"{name} must be {rule}, got {got.format(value.detach()[~right][0].item())}")


def per_row(value: Tensor, scores: Tensor, dim: int) -> Tensor:
    """A parameter as a vector: one entry if it is the same for all rows, else one per row."""
    if value.numel() == 1:
        return value.reshape(1)
    return value.expand(row_shape(scores, dim)).movedim(dim, -1).reshape(-1)


def map_last(
    function: Callable[[Tensor, Tensor | None], Tensor], scores: Tensor, mask: Tensor | None, dim: int
) -> Tensor:
    """Apply a function along `dim` that maps the last dimension of scores with two or more, under a mask."""
    if scores.dim() == 1:
        return function(scores[None], mask)[0]
    if dim in (-1, scores.dim() - 1):
        return function(scores, mask)
    if mask is not None:
        mask = mask[(None,) * (scores.dim() - mask.dim())].movedim(dim, -1)
    return function(scores.movedim(dim, -1), mask).movedim(-1, dim)


def largest(scores: Tensor, dim: int) -> Tensor:
    """The largest score of each row, which has size 1 along `dim` and no gradient; -inf in a row without entries."""
    if scores.shape[dim] == 0:
        return scores.new_full(row_shape(scores, dim), -torch.inf)
    return scores.detach().amax(dim, keepdim=True)


def entries_left(prepared: Tensor, dim: int) -> Tensor:
    """The number of entries of each row that are not minus infinity, at least 1, with size 1 along `dim`."""
    return (prepared != -torch.inf).sum(dim, keepdim=True).clamp(min=1).to(prepared.dtype)


def row_shape(scores: Tensor, dim: int) -> list[int]:
    """The shape of one number per row: that of the scores, with size 1 along `dim`."""
    shape = list(scores.shape)
    shape[dim] = 1
    return shape


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) > len(target):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(target), strict=False))
