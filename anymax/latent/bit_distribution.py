"""What a bit mapping makes of scores: a distribution over bit-vectors for each row.

Shapes: R rows, D bits, S structures, M samples, V values.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from anymax.latent.support import Support

# So many bits have 65,536 values; more are not listed.
MOST_BITS = 16


class BitDistribution(ABC):
    """Rows of distributions over vectors of D bits; `BitVector` gives them a batch shape."""

    def __init__(self, scores_RD: Tensor) -> None:
        self.scores_RD = scores_RD

    @abstractmethod
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """One value for each row, (R, D)."""

    @abstractmethod
    def log_prob(self, values_MRD: Tensor) -> Tensor:
        """The log-probability (M, R) of values that are all zeros and ones."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """The entropy of each row, (R,)."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most likely value of each row, (R, D)."""

    @abstractmethod
    def relaxed(self, temperature: float, hard: bool, generator: torch.Generator | None) -> Tensor:
        """A sample that gradients pass through, (R, D)."""

    @abstractmethod
    def support(self) -> Support:
        """All pairs of a row and a value of positive probability."""

    @abstractmethod
    def is_exact(self) -> Tensor:
        """Where nothing was left out on the way to the distribution, (R,)."""

    def everything(self) -> Support:
        """All pairs of a row and one of the 2^D values."""
        num_rows, num_bits = self.scores_RD.shape
        values_VD = _all_bits(num_bits, self.scores_RD)
        probs_VR = self.log_prob(values_VD.unsqueeze(1).expand(-1, num_rows, -1)).exp()
        example = torch.arange(num_rows, device=values_VD.device).repeat_interleave(len(values_VD))
        return Support(values_VD.repeat(num_rows, 1), probs_VR.T.reshape(-1), example)


def _all_bits(num_bits: int, like: Tensor) -> Tensor:
    if num_bits > MOST_BITS:
        raise ValueError(
            f"bits must be at most {MOST_BITS} to list every value, got {num_bits} bits, which have 2^{num_bits} "
            "values; use a sparse mapping with a sparse marginal, or an estimator that samples"
        )
    numbers = torch.arange(2**num_bits, device=like.device)
    return (numbers.unsqueeze(-1) >> torch.arange(num_bits, device=like.device) & 1).to(like.dtype)
