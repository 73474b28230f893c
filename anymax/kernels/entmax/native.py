"""Entmax of rows in C++: native.cpp beside this file, called through ctypes."""

import math

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.entmax.protocol import Support, alpha_error_of_loss
from anymax.kernels.rows import computed_in

_FORWARD = library.Function("anymax_entmax_forward", "pplpplli", takes_half=True)
_BACKWARD = library.Function("anymax_entmax_backward", "ppplpplli", takes_half=True)
_SUPPORT = library.Function("anymax_entmax_support", "plplppppllli")
_PRODUCTS = library.Function("anymax_entmax_products", "plppdppppppllli", takes_half=True)

# What the library answers where the rows are too full to be listed.
_DENSE = -2


def why_unsupported(scores: Tensor) -> str | None:
    if not scores.is_cpu:
        return f"it runs on the CPU, and the scores are on {scores.device}"
    if scores.dtype not in _FORWARD.precisions:
        return f"it takes float16, bfloat16, float32 and float64, and the scores are {scores.dtype}"
    return library.why_missing()


def forward(scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """Probabilities of each row."""
    if mask is None:
        probs = torch.empty_like(scores)
    else:
        # Memory that is written in place is there already, and costs no fresh pages.
        scores = probs = torch.where(mask, scores, -torch.inf).contiguous()
    _forward(scores, alpha_A, probs, None)
    return probs


def conjugate(scores: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and max over p of <p, z> - Omega(p) where z is the row minus its maximum."""
    probs = torch.empty_like(scores)
    conjugate_R = _per_row(scores, alpha_A)
    _forward(scores, alpha_A, probs, conjugate_R)
    return probs, conjugate_R.to(scores.dtype)


def backward(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """Gradient by the scores."""
    return _backward(grad, probs, alpha_A, mask, None)


def backward_both(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and, one number per row, by alpha."""
    grad_alpha_R = _per_row(probs, alpha_A)
    return _backward(grad, probs, alpha_A, mask, grad_alpha_R), grad_alpha_R


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
    for tensor in (coefficient_R, hidden_RD, *results):
        assert tensor is None or (tensor.is_contiguous() and tensor.dtype == lists_RN.dtype)
    assert weight_ND.is_contiguous() and computed_in(weight_ND.dtype) == lists_RN.dtype
    assert target_R.is_contiguous() and target_R.dtype == torch.int64
    _PRODUCTS.of(weight_ND.dtype)(
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


def _forward(scores: Tensor, alpha_A: Tensor, probs: Tensor, conjugate_R: Tensor | None) -> None:
    status = _FORWARD.of(scores.dtype)(
        scores.data_ptr(),
        alpha_A.data_ptr(),
        alpha_A.numel(),
        probs.data_ptr(),
        None if conjugate_R is None else conjugate_R.data_ptr(),
        *_size(scores),
        torch.get_num_threads(),
    )
    if status > 0:
        raise alpha_error_of_loss(alpha_A[status - 1].item())
    _check_memory(status)


def _backward(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None, grad_alpha_R: Tensor | None) -> Tensor:
    if grad.dtype != probs.dtype:
        grad = grad.to(probs.dtype)
    grad_scores = torch.empty_like(probs)
    status = _BACKWARD.of(probs.dtype)(
        grad.data_ptr(),
        probs.data_ptr(),
        alpha_A.data_ptr(),
        alpha_A.numel(),
        grad_scores.data_ptr(),
        None if grad_alpha_R is None else grad_alpha_R.data_ptr(),
        *_size(probs),
        torch.get_num_threads(),
    )
    _check_memory(status)
    # A row without an answer is NaN everywhere.
    return grad_scores if mask is None else grad_scores.masked_fill_(~mask, 0)


def _size(scores: Tensor) -> tuple[int, int]:
    """Rows and entries; of rows without entries the number does not matter."""
    n = scores.shape[-1]
    return scores.numel() // n if n else 0, n


def _per_row(scores: Tensor, alpha_A: Tensor) -> Tensor:
    """Zeros, which rows without entries keep."""
    return alpha_A.new_zeros(math.prod(scores.shape[:-1]))


def _check_memory(status: int) -> None:
    if status != 0:
        raise MemoryError("no memory for the scratch space of the entmax kernel, one row per thread")
