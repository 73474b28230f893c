"""SignedLog: softmax of it is stablemax, whose probabilities grow as a power of the score."""

import torch
from torch import Tensor, nn

from anymax.kernels.rows import computed_in


def signed_log(scores: Tensor) -> Tensor:
    """Bend scores so that softmax of the result grows linearly in them, not exponentially.

        sign(scores) log(1 + |scores|)

    Softmax of it gives 1 + z to a score z above 0 and 1 / (1 - z) to one below, normalised, which is stablemax. Half
    precision is computed in float32.

    Args:
        scores: any shape.

    Prieto et al. 2025.

    Example:
        >>> scores = torch.tensor([-3.0, 0.0, 3.0])
        >>> anymax.transforms.signed_log(scores)
        tensor([-1.3863,  0.0000,  1.3863])
        >>> anymax.softmax(anymax.transforms.signed_log(scores))  # 1/4, 1 and 4, normalised
        tensor([0.0476, 0.1905, 0.7619])
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with scores.float()")
    wide = scores.to(computed_in(scores.dtype))
    # A sign would have no gradient at 0, where the slope is 1.
    above, below = torch.log1p(torch.where(wide > 0, wide, 0)), -torch.log1p(torch.where(wide > 0, 0, -wide))
    return torch.where(wide > 0, above, below).to(scores.dtype)


class SignedLog(nn.Module):
    """`signed_log` as a Module.

    Example:
        >>> layer = anymax.vocabulary.FullOutput(50, 8, transform=anymax.transforms.SignedLog())
        >>> layer(torch.randn(6, 8), torch.arange(6)).backward()
        >>> layer.table.grad.shape
        torch.Size([50, 8])
    """

    def forward(self, scores: Tensor) -> Tensor:
        return signed_log(scores)
