"""The piecewise linear increasing function as torch operators that choose their backend when they run.

Scores and their gradient have any shape; results are contiguous. Slopes are a vector of K, one per piece.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anymax.kernels.backend import choose
from anymax.kernels.plif import native, reference

BACKENDS: dict[str, Any] = {"native": native, "reference": reference}

_library = torch.library.Library("anymax", "FRAGMENT")
_library.define("plif(Tensor scores, Tensor slopes, float bound) -> Tensor")
_library.define("plif_backward(Tensor grad, Tensor scores, Tensor slopes, float bound) -> Tensor")
_library.define("plif_backward_both(Tensor grad, Tensor scores, Tensor slopes, float bound) -> (Tensor, Tensor)")


def _pick(scores: Tensor) -> Any:
    return BACKENDS[choose(BACKENDS, scores)]


def _plif(scores: Tensor, slopes: Tensor, bound: float) -> Tensor:
    return _pick(scores).forward(scores.contiguous(), slopes, bound)  # type: ignore[no-any-return]


def _backward(grad: Tensor, scores: Tensor, slopes: Tensor, bound: float) -> Tensor:
    return _pick(scores).backward(grad.contiguous(), scores.contiguous(), slopes, bound)  # type: ignore[no-any-return]


def _backward_both(grad: Tensor, scores: Tensor, slopes: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    arguments = (grad.contiguous(), scores.contiguous(), slopes, bound)
    return _pick(scores).backward_both(*arguments)  # type: ignore[no-any-return]


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


_KERNELS: dict[str, Callable[..., Any]] = {
    "plif": _plif,
    "plif_backward": _backward,
    "plif_backward_both": _backward_both,
}
_FAKES: dict[str, Callable[..., Any]] = {
    "plif": lambda scores, slopes, bound: _like(scores),
    "plif_backward": lambda grad, scores, slopes, bound: _like(scores),
    "plif_backward_both": lambda grad, scores, slopes, bound: (_like(scores), _like(slopes)),
}


def _batched(name: str) -> Any:
    """The vmap rule: entries may have any shape, so only batched slopes, or gradients of slopes, take a call each."""
    operator = getattr(torch.ops.anymax, name)

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        *tensors, bound = arguments
        pairs = list(zip(tensors, in_dims, strict=False))
        *entries, slopes = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs]
        if name != "plif_backward_both" and in_dims[-2] is None:
            return operator(*entries, slopes[0], bound), 0
        results = [operator(*(t[i] for t in (*entries, slopes)), bound) for i in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(result) for result in zip(*results, strict=True)), (0, 0)

    return rule


for _name, _kernel in _KERNELS.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"anymax::{_name}", _FAKES[_name])
    torch.library.register_vmap(f"anymax::{_name}", _batched(_name))

plif = torch.ops.anymax.plif.default
plif_backward = torch.ops.anymax.plif_backward.default
plif_backward_both = torch.ops.anymax.plif_backward_both.default
