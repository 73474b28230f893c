"""Attention by entmax in C++."""

from torch import Tensor

from anymax.kernels.attention.reference import backward as backward
from anymax.kernels.attention.reference import forward as forward


def why_unsupported(query_BHQE: Tensor) -> str | None:
    return "there is no C++ for attention yet"
