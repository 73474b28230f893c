"""Entmax of rows in Triton, for GPUs: the kernels stand in triton_rows.py beside this file."""

import math
from contextlib import nullcontext

import torch
import triton
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from anymax.kernels.entmax import triton_rows
from anymax.kernels.entmax.omega import tsallis_by_alpha
from anymax.kernels.entmax.protocol import Support
from anymax.kernels.entmax.reference import add_products as add_products

# Rows of more entries than this are read from memory in every pass.
LONGEST_ON_CHIP = 8192
# As many at once.
PART = 4096
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def is_interpreted() -> bool:
    """Whether Triton was imported with TRITON_INTERPRET=1, and runs kernels on the CPU, slowly, to test them."""
    functions = (triton_rows.forward, triton.language.zeros)
    return all(isinstance(function, InterpretedFunction) for function in functions)


def why_unsupported(scores: Tensor) -> str | None:
    """The same for all kernels in Triton."""
    if scores.dtype not in _DTYPES:
        return f"it takes float16, bfloat16 and float32, and the tensor is {scores.dtype}"
    if is_interpreted():
        if scores.dtype == torch.bfloat16:
            return "Triton's interpreter cuts bfloat16 off where a GPU rounds, and multiplies its bits"
        return None if scores.device.type in ("cpu", "cuda") else f"it runs on GPUs, not on {scores.device}"
    if scores.device.type != "cuda":
        return (
            f"it runs on GPUs, and the tensor is on {scores.device}; TRITON_INTERPRET=1 in the environment runs it in "
            "Triton's interpreter, which is for tests"
        )
    if torch.version.hip is None and torch.cuda.get_device_capability(scores.device) < (8, 0):
        return f"it needs compute capability 8.0, and {torch.cuda.get_device_name(scores.device)} has less"
    return None


def forward(scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """Probabilities of each row."""
    probs = torch.empty_like(scores)
    _forward(scores.view(_size(scores)), alpha_A, mask, scores.shape, probs.view(_size(scores)), None, None)
    return probs


def conjugate(scores: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and max over p of <p, z> - Omega(p) where z is the row minus its maximum."""
    probs = torch.empty_like(scores)
    top_R, conjugate_R = alpha_A.new_zeros(2, _size(scores)[0])
    _forward(scores.view(_size(scores)), alpha_A, None, scores.shape, probs.view(_size(scores)), top_R, conjugate_R)
    return probs, conjugate_R.to(scores.dtype)


def support_(scores_RN: Tensor, alpha_A: Tensor, capacity: int, wants_by_alpha: bool) -> Support:
    """Entmax in place, without lists whatever the capacity: the scores become probabilities."""
    top_R, conjugate_R = scores_RN.new_zeros(2, len(scores_RN))
    _forward(scores_RN, alpha_A, None, scores_RN.shape, scores_RN, top_R, conjugate_R)
    return Support(top_R, conjugate_R, tsallis_by_alpha(scores_RN, alpha_A) if wants_by_alpha else None, None)


def backward(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """Gradient by the scores."""
    return _backward(grad, probs, alpha_A, mask, None)


def backward_both(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and, one number per row, by alpha."""
    by_alpha_R = alpha_A.new_zeros(_size(probs)[0])
    return _backward(grad, probs, alpha_A, mask, by_alpha_R), by_alpha_R


def blocks_of(n: int) -> dict[str, int]:
    """How many rows and entries a program takes, and by how many warps, for rows on chip."""
    block_n = max(16, triton.next_power_of_2(n))
    return {"BLOCK_R": max(1, 1024 // block_n), "BLOCK_N": block_n, "num_warps": min(16, max(4, block_n // 512))}


def on_device_of(tensor: Tensor) -> torch.cuda.device | nullcontext[None]:
    """Triton launches on the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _forward(
    scores_RN: Tensor,
    alpha_A: Tensor,
    mask: Tensor | None,
    shape: torch.Size,
    probs_RN: Tensor,
    top_R: Tensor | None,
    conjugate_R: Tensor | None,
) -> None:
    num_rows, n = scores_RN.shape
    if scores_RN.numel() == 0:
        return
    assert scores_RN.stride(1) == probs_RN.stride(1) == 1 or n == 1
    arguments = (
        scores_RN,
        scores_RN.stride(0),
        *_alpha(alpha_A),
        *_mask(mask, shape),
        probs_RN,
        probs_RN.stride(0),
        top_R,
        conjugate_R,
        num_rows,
        n,
    )
    with on_device_of(scores_RN):
        if n > LONGEST_ON_CHIP:
            triton_rows.forward_long[(num_rows,)](*arguments, BLOCK_N=PART, num_warps=8)
        else:
            blocks = blocks_of(n)
            triton_rows.forward[(triton.cdiv(num_rows, blocks["BLOCK_R"]),)](*arguments, **blocks)


def _backward(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None, by_alpha_R: Tensor | None) -> Tensor:
    num_rows, n = _size(probs)
    by_scores = torch.empty_like(probs)
    if probs.numel() == 0:
        return by_scores
    arguments = (
        grad,
        probs,
        *_alpha(alpha_A),
        *_mask(mask, probs.shape),
        by_scores,
        by_alpha_R,
        num_rows,
        n,
    )
    with on_device_of(probs):
        if n > LONGEST_ON_CHIP:
            triton_rows.backward_long[(num_rows,)](*arguments, BLOCK_N=PART, num_warps=8)
        else:
            blocks = blocks_of(n)
            triton_rows.backward[(triton.cdiv(num_rows, blocks["BLOCK_R"]),)](*arguments, **blocks)
    return by_scores


def _size(scores: Tensor) -> tuple[int, int]:
    return math.prod(scores.shape[:-1]), scores.shape[-1]


def _alpha(alpha_A: Tensor) -> tuple[Tensor, int]:
    """Alpha and how far that of the next row is."""
    return alpha_A, 0 if alpha_A.numel() == 1 else 1


def _mask(mask: Tensor | None, shape: torch.Size) -> tuple[Tensor | None, tuple[int, int], tuple[int, ...]]:
    """The mask as bytes, the sizes of the two dimensions before the last, and its strides in four."""
    if mask is None:
        return None, (1, 1), (0, 0, 0, 0)
    mask = mask.expand(shape)
    while mask.dim() > 4:
        # A copy where these two cannot be one.
        mask = mask.flatten(0, 1)
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape)) if mask.dim() < 4 else mask
    return mask.view(torch.uint8), (mask.shape[1], mask.shape[2]), mask.stride()
