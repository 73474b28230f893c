"""Entmax of rows in C++: native.cpp beside this file, called through ctypes."""

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.entmax.reference import alpha_error

_FORWARD = {torch.float32: "anymax_entmax_forward_float32", torch.float64: "anymax_entmax_forward_float64"}
_BACKWARD = {torch.float32: "anymax_entmax_backward_float32", torch.float64: "anymax_entmax_backward_float64"}


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
