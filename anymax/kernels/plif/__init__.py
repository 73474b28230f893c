"""The piecewise linear increasing function as torch operators that choose their backend when they run.

Scores and their gradient have any shape; results are contiguous. Slopes are a vector of K, one per piece.
"""

from typing import Any

import torch
from torch import Tensor

from anymax.kernels.backend import Kernels
from anymax.kernels.operator import operator
from anymax.kernels.plif.protocol import PlifKernel

kernels = Kernels[PlifKernel]("plif")


def plif_of_plain(scores: Tensor, slopes: Tensor, bound: float) -> Tensor:
    """The operator `plif` without the dispatcher, for tensors that `is_plain` of."""
    return kernels.choose(scores).forward(scores.contiguous(), slopes, bound)


def backward_of_plain(grad: Tensor, scores: Tensor, slopes: Tensor, bound: float) -> Tensor:
    """The operator `plif_backward` without the dispatcher."""
    return kernels.choose(scores).backward(grad.contiguous(), scores.contiguous(), slopes, bound)


def backward_both_of_plain(grad: Tensor, scores: Tensor, slopes: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The operator `plif_backward_both` without the dispatcher."""
    arguments = (grad.contiguous(), scores.contiguous(), slopes, bound)
    return kernels.choose(scores).backward_both(*arguments)


def differentiable_backward_both(grad: Tensor, scores: Tensor, slopes: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Gradients that can be differentiated again, which only those of plain torch can."""
    from anymax.kernels.plif import reference

    return reference.backward_both(grad, scores, slopes, bound)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _batched(overload: Any) -> Any:
    """The vmap rule: entries may have any shape, so only batched slopes, or gradients of slopes, take a call each."""
    returns_slopes = len(overload._schema.returns) == 2

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        *tensors, bound = arguments
        pairs = list(zip(tensors, in_dims, strict=False))
        *entries, slopes = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs]
        if not returns_slopes and in_dims[-2] is None:
            return overload(*entries, slopes[0], bound), 0
        results = [overload(*(t[i] for t in (*entries, slopes)), bound) for i in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(result) for result in zip(*results, strict=True)), (0, 0)

    return rule


plif = operator(
    "plif(Tensor scores, Tensor slopes, float bound) -> Tensor",
    plif_of_plain,
    fake=lambda scores, slopes, bound: _like(scores),
    batched=_batched,
)
plif_backward = operator(
    "plif_backward(Tensor grad, Tensor scores, Tensor slopes, float bound) -> Tensor",
    backward_of_plain,
    fake=lambda grad, scores, slopes, bound: _like(scores),
    batched=_batched,
)
plif_backward_both = operator(
    "plif_backward_both(Tensor grad, Tensor scores, Tensor slopes, float bound) -> (Tensor, Tensor)",
    backward_both_of_plain,
    fake=lambda grad, scores, slopes, bound: (_like(scores), _like(slopes)),
    batched=_batched,
)
