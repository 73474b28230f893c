"""Entmax of rows in C++: native.cpp beside this file, called through ctypes."""

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.entmax.protocol import Support, alpha_error_of_loss
from anymax.kernels.rows import as_rows, computed_in, from_rows

_FORWARD = library.Function("anymax_entmax_forward", "pplpplli")
_BACKWARD = library.Function("anymax_entmax_backward", "ppplpplli")
_SUPPORT = library.Function("anymax_entmax_support", "plplppppllli")
_PRODUCTS = library.Function("anymax_entmax_products", "plppdppppppllli")

# What the library answers where the rows are too full to be listed.
_DENSE = -2


def why_unsupported(scores: Tensor) -> str | None:
    if not scores.is_cpu:
        return f"it runs on the CPU, and the scores are on {scores.device}"
    if computed_in(scores.dtype) not in library.PRECISIONS:
        return f"it takes float16, bfloat16, float32 and float64, and the scores are {scores.dtype}"
    return library.why_missing()


def forward(scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Probabilities of each row."""
    scores_RN = as_rows(scores, mask)
    is_copy = mask is not None or scores_RN.dtype != scores.dtype
    # Memory that is written in place is there already, and costs no fresh pages.
    probs_RN = scores_RN if is_copy else torch.empty_like(scores_RN)
    _forward(scores_RN, alpha_A, probs_RN, None)
    return from_rows(probs_RN, scores, dtype)


def conjugate(scores: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and max over p of <p, z> - Omega(p) where z is the row minus its maximum."""
    scores_RN = as_rows(scores)
    probs_RN = torch.empty_like(scores_RN)
    conjugate_R = scores_RN.new_empty(scores_RN.shape[0])
    _forward(scores_RN, alpha_A, probs_RN, conjugate_R)
    return from_rows(probs_RN, scores), conjugate_R.to(scores.dtype)


def backward(
    grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Gradient by the scores."""
    probs_RN = as_rows(probs)
    grad_scores_RN = torch.empty_like(probs_RN)
    _backward(as_rows(grad), probs_RN, alpha_A, grad_scores_RN, None)
    return from_rows(grad_scores_RN, probs, dtype, mask)


def backward_both(
    grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and, one number per row, by alpha."""
    probs_RN = as_rows(probs)
    grad_scores_RN = torch.empty_like(probs_RN)
    grad_alpha_R = probs_RN.new_empty(probs_RN.shape[0])
    _backward(as_rows(grad), probs_RN, alpha_A, grad_scores_RN, grad_alpha_R)
    return from_rows(grad_scores_RN, probs, dtype, mask), grad_alpha_R


def support_(scores_RN: Tensor, alpha_A: Tensor, capacity: int, wants_by_alpha: bool) -> Support:
    """Entmax in place; see `Support` for what comes back."""
    num_rows, n = scores_RN.shape
    top_R, conjugate_R = scores_RN.new_empty(2, num_rows)
    by_alpha_R = scores_RN.new_empty(num_rows) if wants_by_alpha else None
    counts_R = torch.empty(num_rows, dtype=torch.int64)
    status = _SUPPORT.of(scores_RN.dtype)(
        scores_RN.data_ptr(),
        scores_RN.stride(0),
        alpha_A.data_ptr(),
        alpha_A.numel(),
        top_R.data_ptr(),
        conjugate_R.data_ptr(),
        None if by_alpha_R is None else by_alpha_R.data_ptr(),
        counts_R.data_ptr(),
        capacity,
        num_rows,
        n,
        torch.get_num_threads(),
    )
    if status > 0:
        raise alpha_error_of_loss(alpha_A[status - 1].item())
    if status == _DENSE:
        return Support(top_R, conjugate_R, by_alpha_R, None)
    _check_memory(status)
    return Support(top_R, conjugate_R, by_alpha_R, counts_R)


def add_products(
    lists_RN: Tensor,
    counts_R: Tensor,
    target_R: Tensor,
    coefficient_R: Tensor,
    weight_ND: Tensor,
    hidden_RD: Tensor,
    *,
    peak: float,
    into_hidden_RD: Tensor | None,
    into_weight_ND: Tensor | None,
    into_bias_N: Tensor | None,
) -> None:
    """Multiply the gradient G of listed rows with a layer: c G W is written, G' c H and G' c are added."""
    num_rows, n = lists_RN.shape
    results = (into_hidden_RD, into_weight_ND, into_bias_N)
    for tensor in (coefficient_R, weight_ND, hidden_RD, *results):
        assert tensor is None or (tensor.is_contiguous() and tensor.dtype == lists_RN.dtype)
    assert target_R.is_contiguous() and target_R.dtype == torch.int64
    _PRODUCTS.of(lists_RN.dtype)(
        lists_RN.data_ptr(),
        lists_RN.stride(0),
        counts_R.data_ptr(),
        target_R.data_ptr(),
        peak,
        coefficient_R.data_ptr(),
        weight_ND.data_ptr(),
        hidden_RD.data_ptr(),
        *(None if tensor is None else tensor.data_ptr() for tensor in results),
        num_rows,
        n,
        weight_ND.shape[1],
        torch.get_num_threads(),
    )


def _forward(scores_RN: Tensor, alpha_A: Tensor, probs_RN: Tensor, conjugate_R: Tensor | None) -> None:
    num_rows, n = scores_RN.shape
    status = _FORWARD.of(scores_RN.dtype)(
        scores_RN.data_ptr(),
        alpha_A.data_ptr(),
        alpha_A.numel(),
        probs_RN.data_ptr(),
        None if conjugate_R is None else conjugate_R.data_ptr(),
        num_rows,
        n,
        torch.get_num_threads(),
    )
    if status > 0:
        raise alpha_error_of_loss(alpha_A[status - 1].item())
    _check_memory(status)


def _backward(
    grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor, grad_scores_RN: Tensor, grad_alpha_R: Tensor | None
) -> None:
    num_rows, n = probs_RN.shape
    status = _BACKWARD.of(probs_RN.dtype)(
        grad_RN.data_ptr(),
        probs_RN.data_ptr(),
        alpha_A.data_ptr(),
        alpha_A.numel(),
        grad_scores_RN.data_ptr(),
        None if grad_alpha_R is None else grad_alpha_R.data_ptr(),
        num_rows,
        n,
        torch.get_num_threads(),
    )
    _check_memory(status)


def _check_memory(status: int) -> None:
    if status != 0:
        raise MemoryError("no memory for the scratch space of the entmax kernel, one row per thread")
