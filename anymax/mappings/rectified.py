"""Rectified: sparse weights in attention, for the price of a comparison."""

import math

from torch import Tensor, nn

from anymax.mappings.arguments import check_number, entries_left, prepare
from anymax.mappings.total import sums_to


@sums_to("weights")
def rectified(scores: Tensor, power: float = 1.0, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Give every entry the weight relu(score) ^ power / n, which does not depend on the other scores.

    A row is no distribution: its weights grow with its scores. Attention by them trains where a norm of what is
    gathered, as RMSNorm, follows.

    Args:
        scores: floating point, any shape.
        power: at least 1; published are 1 and 2.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; n counts those, and the others get zero.

    Zhang et al. 2021; divided by n: Wortsman et al. 2023.

    Example:
        >>> anymax.rectified(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.5000, 0.3750, 0.1250, 0.0000])
    """
    check_number("power", power)
    if not 1 <= power < math.inf:
        raise ValueError(f"power must be finite and at least 1, got {power}; below, its slope at 0 is infinite")
    prepared = prepare(scores, dim, mask)
    weights = prepared.relu()
    if power != 1:
        weights = weights**power
    return (weights / entries_left(prepared, dim)).to(scores.dtype)


@sums_to("weights")
class Rectified(nn.Module):
    """`rectified` as a Module.

    Args:
        power: at least 1.
        dim: the dimension of the entries.

    Example:
        >>> from anymax.attention import MultiHeadAttention
        >>> layer = MultiHeadAttention(16, 4, mapping=anymax.mappings.Rectified(power=2.0))
        >>> weights = layer.probs(torch.randn(2, 5, 16))
        >>> (weights == 0).any()
        tensor(True)
    """

    def __init__(self, power: float = 1.0, dim: int = -1) -> None:
        super().__init__()
        self.power = power
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return rectified(scores, self.power, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"power={self.power:g}, dim={self.dim}"
