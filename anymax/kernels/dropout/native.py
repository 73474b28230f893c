"""Dropout of single entries in C++: native.cpp beside this file, called through ctypes."""

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.dropout.reference import scale, threshold
from anymax.kernels.memory import large_empty
from anymax.kernels.rows import computed_in

_FORWARD = library.Function("anymax_dropout", "ppplllldi")


def why_unsupported(entries: Tensor) -> str | None:
    if entries.device.type != "cpu":
        return f"it runs on the CPU, and the entries are on {entries.device}"
    if computed_in(entries.dtype) not in library.PRECISIONS:
        return f"it takes float16, bfloat16, float32 and float64, and the entries are {entries.dtype}"
    return library.why_missing()


def forward(entries_RN: Tensor, seed_R: Tensor, rate: float, first: int = 0) -> Tensor:
    """Entries that are kept, divided by the share that is kept, and zeros; see `reference.forward`."""
    wide_RN = entries_RN.to(computed_in(entries_RN.dtype))
    num_rows, n = wide_RN.shape
    out_RN = large_empty((num_rows, n), wide_RN)
    _FORWARD.of(wide_RN.dtype)(
        wide_RN.data_ptr(),
        seed_R.data_ptr(),
        out_RN.data_ptr(),
        num_rows,
        n,
        first,
        threshold(rate),
        scale(rate),
        torch.get_num_threads(),
    )
    return out_RN.to(entries_RN.dtype)
