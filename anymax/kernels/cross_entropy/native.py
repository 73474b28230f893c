"""Cross-entropy of rows in C++: native.cpp beside this file, called through ctypes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.memory import large_empty

_ROWS = library.Function("anymax_cross_entropy", "plppdilli")
_LAYER = library.Function("anymax_layer_cross_entropy", "plllppppppdlli")
# A layer with at most this many weights and biases has them, and the sums of their gradients, in the second cache.
SMALL = 2**14
# Rows of a layer's columns are whole groups of the widest vectors.
_GROUP = 64
# How many rows of hidden states are summed into one gradient of the columns before these are summed: in a fixed order,
# whatever the number of threads, and the more exactly for it.
_PART = 512


def why_unsupported(scores: Tensor) -> str | None:
    if scores.device.type != "cpu":
        return f"it runs on the CPU, and the scores are on {scores.device}"
    if scores.dtype not in library.PRECISIONS:
        return f"it takes float32 and float64, and the scores are {scores.dtype}"
    if scores.dim() == 2 and scores.shape[1] > 1 and scores.stride(1) != 1:
        return f"the entries of a row must stand side by side, and the strides are {scores.stride()}"
    return library.why_missing()


def cross_entropy_(scores_RN: Tensor, target_R: Tensor, label_smoothing: float, wants_gradient: bool) -> Tensor:
    num_rows, n = scores_RN.shape
    losses_R = scores_RN.new_empty(num_rows)
    target_R = target_R.long().contiguous()
    _ROWS.of(scores_RN.dtype)(
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


def prefers_layer(hidden_RD: Tensor, weight_ND: Tensor) -> bool:
    return weight_ND.shape[0] * (weight_ND.shape[1] + 1) <= SMALL


def layer_cross_entropy(
    hidden_RD: Tensor,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    target_R: Tensor,
    label_smoothing: float,
    coefficient_R: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of every row of a small linear layer, and what is wanted of the gradients of the first three tensors."""
    (num_rows, dim), n = hidden_RD.shape, weight_ND.shape[0]
    stride = -(-n // _GROUP) * _GROUP
    columns = hidden_RD.new_zeros(dim + 1, stride)
    columns[:dim, :n] = weight_ND.T
    if bias_N is not None:
        columns[dim, :n] = bias_N
    losses_R, by_hidden, by_columns = hidden_RD.new_empty(num_rows), None, None
    if coefficient_R is not None and wanted[0]:
        by_hidden = large_empty((num_rows, dim), hidden_RD)
    if coefficient_R is not None and any(wanted[1:]):
        by_columns = hidden_RD.new_zeros(-(-num_rows // _PART), dim + 1, stride)
    target_R = target_R.long().contiguous()
    coefficient_R = None if coefficient_R is None else coefficient_R.to(hidden_RD.dtype).contiguous()
    status = _LAYER.of(hidden_RD.dtype)(
        columns.data_ptr(),
        dim,
        n,
        stride,
        hidden_RD.data_ptr(),
        target_R.data_ptr(),
        None if coefficient_R is None else coefficient_R.data_ptr(),
        losses_R.data_ptr(),
        None if by_hidden is None else by_hidden.data_ptr(),
        None if by_columns is None else by_columns.data_ptr(),
        label_smoothing,
        num_rows,
        _PART,
        torch.get_num_threads(),
    )
    if status == -1:
        raise MemoryError("no memory for the scratch space of the cross-entropy kernel, four rows per thread")
    if by_columns is None:
        return losses_R, [by_hidden, None, None]
    by_weight = by_columns[:, :dim, :n].sum(0).T.contiguous() if wanted[1] else None
    return losses_R, [by_hidden, by_weight, by_columns[:, dim, :n].sum(0) if wanted[2] else None]
