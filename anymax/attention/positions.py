"""Where a token stands, without parameters: sinusoids added to its vector, or a rotation of its queries and keys.

Shapes: N positions, F frequencies, E numbers per head.
"""

import math

import torch
from torch import Tensor

# The longest wavelength is this many times 2 pi.
BASE = 10_000.0


def sinusoids(length: int, dim: int, *, start: int = 0, device: torch.device | None = None) -> Tensor:
    """Vectors of positions, (length, dim): sines in the first half, cosines of the same angles in the second.

    Frequencies fall geometrically from 1 to 1/10,000, both included.

    Args:
        length: the number of positions.
        dim: even, and at least 4.
        start: the first position.
        device: where the result is made; by default torch's own.

    Vaswani et al. 2017.

    Example:
        >>> anymax.attention.sinusoids(3, 4).round(decimals=2)
        tensor([[ 0.0000,  0.0000,  1.0000,  1.0000],
                [ 0.8400,  0.0000,  0.5400,  1.0000],
                [ 0.9100,  0.0000, -0.4200,  1.0000]])
    """
    if dim < 4 or dim % 2:
        raise ValueError(f"dim must be even and at least 4 for sinusoids, got {dim}; use rotary positions or none")
    half = dim // 2
    frequencies_F = torch.exp(torch.arange(half, device=device) * (-math.log(BASE) / (half - 1)))
    angles_NF = _angles(length, start, frequencies_F)
    return torch.cat([angles_NF.sin(), angles_NF.cos()], -1)


def rotate(vectors: Tensor, *, start: int = 0) -> Tensor:
    """Turn vectors by their position, so that the product of two depends on how far apart they are.

    Entry i of the first half and entry i of the second are a point in the plane; its angle grows by 10,000^(-2i/E) with
    every position.

    Args:
        vectors: (..., N, E) with E even; the N positions follow one another.
        start: the first position.

    Su et al. 2021.

    Example:
        >>> query, key = torch.randn(2, 1, 8).expand(2, 6, 8)  # the same vectors at 6 positions
        >>> products = anymax.attention.rotate(query) @ anymax.attention.rotate(key).T
        >>> torch.allclose(products[0, 2], products[3, 5], atol=1e-5)  # both are two positions apart
        True
    """
    length, width = vectors.shape[-2:]
    if width % 2:
        raise ValueError(f"vectors must have an even last dimension to be rotated, got {width}; change num_heads")
    frequencies_F = BASE ** (torch.arange(0, width, 2, device=vectors.device) / -width)
    angles_NF = _angles(length, start, frequencies_F)
    cos_NF, sin_NF = angles_NF.cos().to(vectors.dtype), angles_NF.sin().to(vectors.dtype)
    x, y = vectors.chunk(2, -1)
    return torch.cat([x * cos_NF - y * sin_NF, x * sin_NF + y * cos_NF], -1)


def _angles(length: int, start: int, frequencies_F: Tensor) -> Tensor:
    positions_N = torch.arange(start, start + length, device=frequencies_F.device)
    return positions_N[:, None] * frequencies_F
