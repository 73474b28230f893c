"""Cross-entropy of rows in C++: native.cpp beside this file, called through ctypes."""

import torch
from torch import Tensor

from anymax.kernels import library

_NAMES = {torch.float32: "anymax_cross_entropy_float32", torch.float64: "anymax_cross_entropy_float64"}


def why_unsupported(scores: Tensor) -> str | None:
    if scores.device.type != "cpu":
        return f"it runs on the CPU, and the scores are on {scores.device}"
    if scores.dtype not in _NAMES:
        return f"it takes float32 and float64, and the scores are {scores.dtype}"
    if scores.dim() == 2 and scores.shape[1] > 1 and scores.stride(1) != 1:
        return f"the entries of a row must stand side by side, and the strides are {scores.stride()}"
    return library.why_missing()


def cross_entropy_(scores_RN: Tensor, target_R: Tensor, label_smoothing: float, wants_gradient: bool) -> Tensor:
    num_rows, n = scores_RN.shape
    losses_R = scores_RN.new_empty(num_rows)
    target_R = target_R.long().contiguous()
    call = library.function(_NAMES[scores_RN.dtype], "plppdilli")
    call(
        scores_RN.data_ptr(),
        scores_RN.stride(0),
        target_R.data_ptr(),
        losses_R.data_ptr(),
        label_smoothing,
        int(wants_gradient),
        num_rows,
        n,
        torch.get_num_threads(),
    )
    return losses_R
