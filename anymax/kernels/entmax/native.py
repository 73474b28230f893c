"""Entmax of rows in C++: native.cpp beside this file, called through ctypes."""

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.entmax.reference import alpha_error

_FORWARD = {torch.float32: "anymax_entmax_forward_float32", torch.float64: "anymax_entmax_forward_float64"}
_SUPPORT = {torch.float32: "anymax_entmax_support_float32", torch.float64: "anymax_entmax_support_float64"}
_PRODUCTS = {torch.float32: "anymax_entmax_products_float32", torch.float64: "anymax_entmax_products_float64"}
_BACKWARD = {torch.float32: "anymax_entmax_backward_float32", torch.float64: "anymax_entmax_backward_float64"}

# What the library answers where the rows are too full to be listed.
_DENSE = -2


def why_unsupported(scores: Tensor) -> str | None:
    if scores.device.type != "cpu":
        return f"it runs on the CPU, and the scores are on {scores.device}"
    if scores.dtype not in _FORWARD:
        return f"it takes float32 and float64, and the scores are {scores.dtype}"
    return library.why_missing()


def forward(scores_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """Probabilities of each row."""
    probs_RN = torch.empty_like(scores_RN)
    _forward(scores_RN, alpha_A, probs_RN, None)
    return probs_RN


def conjugate(scores_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and max over p of <p, z> - Omega(p) where z is the row minus its maximum."""
    probs_RN = torch.empty_like(scores_RN)
    conjugate_R = scores_RN.new_empty(scores_RN.shape[0])
    _forward(scores_RN, alpha_A, probs_RN, conjugate_R)
    return probs_RN, conjugate_R


def backward(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """Gradient by the scores."""
    grad_scores_RN = torch.empty_like(probs_RN)
    _backward(grad_RN, probs_RN, alpha_A, grad_scores_RN, None)
    return grad_scores_RN


def backward_both(grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and, one number per row, by alpha."""
    grad_scores_RN = torch.empty_like(probs_RN)
    grad_alpha_R = probs_RN.new_empty(probs_RN.shape[0])
    _backward(grad_RN, probs_RN, alpha_A, grad_scores_RN, grad_alpha_R)
    return grad_scores_RN, grad_alpha_R


def support_(
    scores_RN: Tensor, alpha_A: Tensor, capacity: int, wants_by_alpha: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Entmax in place; see `Support` for what comes back."""
    num_rows, n = scores_RN.shape
    top_R, conjugate_R = scores_RN.new_empty(2, num_rows)
    by_alpha_R = scores_RN.new_empty(num_rows) if wants_by_alpha else None
    counts_R = torch.empty(num_rows, dtype=torch.int64)
    status = library.function(_SUPPORT[scores_RN.dtype], "plplppppllli")(
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
        raise alpha_error(alpha_A[status - 1].item())
    if status == _DENSE:
        return top_R, conjugate_R, by_alpha_R, None
    _check_memory(status)
    return top_R, conjugate_R, by_alpha_R, counts_R


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
    """Multiply the gradient G of rows of scores with a layer: c G W is written, G' c H and G' c are added.

    Args:
        lists_RN: the listed probabilities; the gradient is these less `peak` at the target.
        coefficient_R: c, what the gradient of each row is multiplied with.
    """
    num_rows, n = lists_RN.shape
    results = (into_hidden_RD, into_weight_ND, into_bias_N)
    for tensor in (coefficient_R, weight_ND, hidden_RD, *results):
        assert tensor is None or (tensor.is_contiguous() and tensor.dtype == lists_RN.dtype)
    assert target_R.is_contiguous() and target_R.dtype == torch.int64
    library.function(_PRODUCTS[lists_RN.dtype], "plppdppppppllli")(
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
    call = library.function(_FORWARD[scores_RN.dtype], "pplpplli")
    status = call(
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
        raise alpha_error(alpha_A[status - 1].item())
    _check_memory(status)


def _backward(
    grad_RN: Tensor, probs_RN: Tensor, alpha_A: Tensor, grad_scores_RN: Tensor, grad_alpha_R: Tensor | None
) -> None:
    num_rows, n = probs_RN.shape
    call = library.function(_BACKWARD[probs_RN.dtype], "ppplpplli")
    status = call(
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
