"""Dropout of single entries as a torch operator that chooses its backend when it runs.

Which entries are dropped is a function of a seed and of the entry's number in its row, so nothing need be kept to do it
again: the gradient is the same operator with the same seed. `reference.py` defines the random bits.
Shapes: R rows of N entries, one seed per row.
"""

from typing import Any

import torch
from torch import Tensor

from anymax.kernels.backend import Kernels
from anymax.kernels.dropout.protocol import DropoutKernel
from anymax.kernels.operator import operator

kernels = Kernels[DropoutKernel]("dropout")


def _dropout(entries_RN: Tensor, seed_R: Tensor, rate: float) -> Tensor:
    if seed_R.dtype != torch.int64 or seed_R.shape != entries_RN.shape[:1]:
        raise ValueError(
            f"seed must be int64 with one entry per row, {entries_RN.shape[0]}, "
            f"got {seed_R.dtype} of shape {tuple(seed_R.shape)}"
        )
    return kernels.choose(entries_RN).forward(entries_RN.contiguous(), seed_R.contiguous(), rate)


def _batched(overload: Any) -> Any:
    """The vmap rule: a batch of matrices is one matrix with more rows. Those that share a seed share a mask."""

    def rule(
        info: Any, in_dims: tuple[int | None, ...], entries: Tensor, seed: Tensor, rate: float
    ) -> tuple[Tensor, int]:
        entries_BRN, seed_BR = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((entries, seed), in_dims, strict=False)
        )
        results = overload(entries_BRN.flatten(0, 1), seed_BR.flatten(), rate)
        return results.unflatten(0, entries_BRN.shape[:2]), 0

    return rule


dropout = operator(
    "dropout(Tensor entries, Tensor seed, float rate) -> Tensor",
    _dropout,
    fake=lambda entries, seed, rate: torch.empty_like(entries, memory_format=torch.contiguous_format),
    batched=_batched,
)
