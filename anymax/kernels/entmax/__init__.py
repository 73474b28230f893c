"""Entmax of the rows of a matrix, as torch operators that choose their backend when they run.

Shapes: R rows, N entries, and one alpha per row or one for all (A is R or 1). Every matrix is contiguous.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anymax.kernels.backend import choose
from anymax.kernels.entmax import native, reference

BACKENDS: dict[str, Any] = {"native": native, "reference": reference}

_library = torch.library.Library("anymax", "FRAGMENT")
_library.define("entmax(Tensor scores, Tensor alpha) -> Tensor")
_library.define("entmax_conjugate(Tensor scores, Tensor alpha) -> (Tensor, Tensor)")
_library.define("entmax_backward(Tensor grad, Tensor probs, Tensor alpha) -> Tensor")
_library.define("entmax_backward_both(Tensor grad, Tensor probs, Tensor alpha) -> (Tensor, Tensor)")


def _pick(scores: Tensor) -> Any:
    return BACKENDS[choose(BACKENDS, scores)]


def entmax_of_plain(scores_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """The operator `entmax` without the dispatcher, for tensors that `is_plain` of."""
    return _pick(scores_RN).forward(scores_RN.contiguous(), alpha_A.contiguous())  # type: ignore[no-any-return]


def _conjugate(scores_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    return _pick(scores_RN).conjugate(scores_RN.contiguous(), alpha_A.contiguous())  # type: ignore[no-any-return]


def _backward(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> Tensor:
    arguments = (grad_RN.contiguous(), probs_RN.contiguous(), alpha_A.contiguous())
    return _pick(probs_RN).backward(*arguments)  # type: ignore[no-any-return]


def _backward_both(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    arguments = (grad_RN.contiguous(), probs_RN.contiguous(), alpha_A.contiguous())
    return _pick(probs_RN).backward_both(*arguments)  # type: ignore[no-any-return]


def _like(matrix: Tensor) -> Tensor:
    return torch.empty_like(matrix, memory_format=torch.contiguous_format)


def _rows_of(matrix: Tensor) -> Tensor:
    return matrix.new_empty(matrix.shape[0])


_KERNELS: dict[str, Callable[..., Any]] = {"entmax": entmax_of_plain, "entmax_conjugate": _conjugate}
_KERNELS |= {"entmax_backward": _backward, "entmax_backward_both": _backward_both}
_FAKES: dict[str, Callable[..., Any]] = {
    "entmax": lambda scores, alpha: _like(scores),
    "entmax_conjugate": lambda scores, alpha: (_like(scores), _rows_of(scores)),
    "entmax_backward": lambda grad, probs, alpha: _like(probs),
    "entmax_backward_both": lambda grad, probs, alpha: (_like(probs), _rows_of(probs)),
}


def _batched(name: str) -> Any:
    """The vmap rule: a batch of matrices is one matrix with more rows."""
    operator = getattr(torch.ops.anymax, name)

    def rule(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Any, Any]:
        in_front = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims, strict=True)
        ]
        *matrices_BRN, alpha_BA = in_front
        num_rows = matrices_BRN[0].shape[1]
        one_for_all = in_dims[-1] is None and alpha_BA.shape[1] == 1
        alpha = tensors[-1] if one_for_all else alpha_BA.expand(-1, num_rows).flatten()
        results = operator(*(matrix.flatten(0, 1) for matrix in matrices_BRN), alpha)
        if isinstance(results, Tensor):
            return results.unflatten(0, (info.batch_size, num_rows)), 0
        return tuple(result.unflatten(0, (info.batch_size, num_rows)) for result in results), (0,) * len(results)

    return rule


for _name, _kernel in _KERNELS.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"anymax::{_name}", _FAKES[_name])
    torch.library.register_vmap(f"anymax::{_name}", _batched(_name))

entmax = torch.ops.anymax.entmax.default
entmax_conjugate = torch.ops.anymax.entmax_conjugate.default
entmax_backward = torch.ops.anymax.entmax_backward.default
entmax_backward_both = torch.ops.anymax.entmax_backward_both.default
