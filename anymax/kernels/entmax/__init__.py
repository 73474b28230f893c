"""Entmax of the rows of a matrix, as torch operators that choose their backend when they run.

Shapes: R rows, N entries, and one alpha per row or one for all (A is R or 1). Every matrix is contiguous.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from anymax.kernels.backend import choose
from anymax.kernels.entmax import native, reference
from anymax.kernels.operator import operator

BACKENDS: dict[str, Any] = {"native": native, "reference": reference}


def _pick(matrix_RN: Tensor, alpha_A: Tensor) -> Any:
    if alpha_A.dtype != matrix_RN.dtype or alpha_A.shape[0] not in (1, matrix_RN.shape[0]):
        raise ValueError(
            f"alpha must be {matrix_RN.dtype} with 1 or {matrix_RN.shape[0]} entries, one per row, "
            f"got {alpha_A.dtype} with {alpha_A.shape[0]}"
        )
    return BACKENDS[choose(BACKENDS, matrix_RN)]


def entmax_of_plain(scores_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """The operator `entmax` without the dispatcher, for tensors that `is_plain` of."""
    return _pick(scores_RN, alpha_A).forward(scores_RN.contiguous(), alpha_A.contiguous())


def _conjugate(scores_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    return _pick(scores_RN, alpha_A).conjugate(scores_RN.contiguous(), alpha_A.contiguous())


def _backward(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> Tensor:
    arguments = (grad_RN.contiguous(), probs_RN.contiguous(), alpha_A.contiguous())
    return _pick(probs_RN, alpha_A).backward(*arguments)


def _backward_both(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    arguments = (grad_RN.contiguous(), probs_RN.contiguous(), alpha_A.contiguous())
    return _pick(probs_RN, alpha_A).backward_both(*arguments)


class Support(NamedTuple):
    """What `support_` tells of each row: its maximum, the conjugate of the row minus that, the derivative of Omega by
    alpha if wanted, and its list.

    A row that is a list holds `counts_R` probabilities at its front and as many indices (int32) at its back; None for
    the counts means that all rows hold probabilities.
    """

    top_R: Tensor
    conjugate_R: Tensor
    by_alpha_R: Tensor | None
    counts_R: Tensor | None


def support_(scores_RN: Tensor, alpha_A: Tensor, *, capacity: int, wants_by_alpha: bool) -> Support:
    """Entmax in place, of rows that may stand apart: as lists of what was chosen if those hold `capacity` at most."""
    return Support(*_pick(scores_RN, alpha_A).support_(scores_RN, alpha_A.contiguous(), capacity, wants_by_alpha))


def _like(matrix: Tensor) -> Tensor:
    return torch.empty_like(matrix, memory_format=torch.contiguous_format)


def _rows_of(matrix: Tensor) -> Tensor:
    return matrix.new_empty(matrix.shape[0])


def _batched(overload: Any) -> Any:
    """The vmap rule: a batch of matrices is one matrix with more rows."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Any, Any]:
        in_front = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims, strict=True)
        ]
        *matrices_BRN, alpha_BA = in_front
        num_rows = matrices_BRN[0].shape[1]
        one_for_all = in_dims[-1] is None and alpha_BA.shape[1] == 1
        alpha = tensors[-1] if one_for_all else alpha_BA.expand(-1, num_rows).flatten()
        results = overload(*(matrix.flatten(0, 1) for matrix in matrices_BRN), alpha)
        if isinstance(results, Tensor):
            return results.unflatten(0, (info.batch_size, num_rows)), 0
        return tuple(result.unflatten(0, (info.batch_size, num_rows)) for result in results), (0,) * len(results)

    return rule


entmax = operator(
    "entmax(Tensor scores, Tensor alpha) -> Tensor",
    entmax_of_plain,
    fake=lambda scores, alpha: _like(scores),
    batched=_batched,
)
entmax_conjugate = operator(
    "entmax_conjugate(Tensor scores, Tensor alpha) -> (Tensor, Tensor)",
    _conjugate,
    fake=lambda scores, alpha: (_like(scores), _rows_of(scores)),
    batched=_batched,
)
entmax_backward = operator(
    "entmax_backward(Tensor grad, Tensor probs, Tensor alpha) -> Tensor",
    _backward,
    fake=lambda grad, probs, alpha: _like(probs),
    batched=_batched,
)
entmax_backward_both = operator(
    "entmax_backward_both(Tensor grad, Tensor probs, Tensor alpha) -> (Tensor, Tensor)",
    _backward_both,
    fake=lambda grad, probs, alpha: (_like(probs), _rows_of(probs)),
    batched=_batched,
)
