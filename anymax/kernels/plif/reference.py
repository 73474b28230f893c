"""The piecewise linear increasing function in plain torch: the definition the other backends are held to.

K pieces of width delta share [-bound, bound], and f(-bound) = -bound. In piece j, which starts at a_j,

    f(x) = f(a_j) + s_j (x - a_j),    f(a_j) = -bound + delta sum_{i<j} s_i,

and the end pieces continue beyond the ends. Every function here can be differentiated, which double backward uses.
Shapes: scores of any shape, of N entries in all; K slopes.
"""

import torch
from torch import Tensor


def why_unsupported(scores: Tensor) -> str | None:
    return None


def forward(scores: Tensor, slopes_K: Tensor, bound: float) -> Tensor:
    """f of every entry, in the dtype of the scores."""
    wide = _wide(scores)
    slopes = slopes_K.to(wide)
    delta = 2 * bound / slopes.shape[0]
    piece_N, offset_N = _locate(scores.to(wide).reshape(-1), slopes.shape[0], bound)
    starts_K = delta * (slopes.cumsum(0) - slopes) - bound
    values_N = starts_K.index_select(0, piece_N) + slopes.index_select(0, piece_N) * offset_N
    return values_N.reshape(scores.shape).to(scores.dtype)


def backward(grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float) -> Tensor:
    """Gradient by the scores: the slope of each entry's piece."""
    wide = _wide(scores)
    piece_N, _ = _locate(scores.to(wide).reshape(-1), slopes_K.shape[0], bound)
    slope = slopes_K.to(wide).index_select(0, piece_N).reshape(scores.shape)
    return (grad.to(wide) * slope).to(scores.dtype)


def backward_both(grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and by the slopes.

    A slope moves every entry of its own piece by x - a_j and every entry of a later piece by delta.
    """
    wide = _wide(scores)
    num_pieces = slopes_K.shape[0]
    piece_N, offset_N = _locate(scores.to(wide).reshape(-1), num_pieces, bound)
    grad_N = grad.to(wide).reshape(-1)
    # An infinite score whose result is not used is ignored.
    unused_N = ~torch.isfinite(offset_N) & (grad_N == 0)
    zeros_K = torch.zeros_like(slopes_K, dtype=wide)
    own_K = zeros_K.index_add(0, piece_N, grad_N * torch.where(unused_N, 0, offset_N))
    sum_K = zeros_K.index_add(0, piece_N, grad_N)
    later_K = sum_K.flip(0).cumsum(0).flip(0) - sum_K
    grad_slopes_K = own_K + 2 * bound / num_pieces * later_K
    return backward(grad, scores, slopes_K, bound), grad_slopes_K.to(slopes_K.dtype)


def _wide(scores: Tensor) -> torch.dtype:
    # Apple's devices have no double precision.
    return torch.float32 if scores.device.type == "mps" else torch.float64


def _locate(x_N: Tensor, num_pieces: int, bound: float) -> tuple[Tensor, Tensor]:
    """The piece of every score (outside, the nearer end's; for NaN, the first) and the distance from its start."""
    inside_N = x_N.clamp(-bound, bound)
    place_N = (inside_N + bound) * (num_pieces / (2 * bound))
    piece_N = place_N.detach().nan_to_num(0).long().clamp(0, num_pieces - 1)
    return piece_N, (place_N - piece_N) * (2 * bound / num_pieces) + (x_N - inside_N)
