"""Distributions over bit-vectors, one for each row: independent bits, or a list of a few bit-vectors.

Shapes: R rows, D bits, S structures, M samples.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.latent.latent import Support, draw, entropy_of, log_of
from anymax.mappings.arguments import computed_in

# 16 bits have 65,536 values; more are not listed.
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


class IndependentBits(BitDistribution):
    """Every bit is on with the probability sigmoid(score)."""

    def __init__(self, scores_RD: Tensor) -> None:
        super().__init__(scores_RD)
        self.logits_RD = scores_RD.to(computed_in(scores_RD.dtype))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        probs_RD = self.logits_RD.detach().sigmoid()
        return torch.bernoulli(probs_RD, generator=generator).to(self.scores_RD.dtype)

    def log_prob(self, values_MRD: Tensor) -> Tensor:
        # The logit of the value that a bit has: -logit where it is off.
        return F.logsigmoid(torch.where(values_MRD > 0, self.logits_RD, -self.logits_RD)).sum(-1)

    def entropy(self) -> Tensor:
        # A bit that may not be on has none; an infinite logit would make NaN of it.
        is_finite = self.logits_RD.isfinite()
        # The entropy is the same for a logit and its negative; with its size nothing cancels.
        size_RD = self.logits_RD.masked_fill(~is_finite, 0.0).abs()
        entropy_RD = F.softplus(-size_RD) + size_RD * torch.sigmoid(-size_RD)
        return entropy_RD.masked_fill(~is_finite, 0.0).sum(-1)

    def mode(self) -> Tensor:
        return (self.scores_RD > 0).to(self.scores_RD.dtype)

    def relaxed(self, temperature: float, hard: bool, generator: torch.Generator | None) -> Tensor:
        # The logarithm of the ratio of two exponential variables is a logistic variable.
        one, other = (torch.empty_like(self.logits_RD).exponential_(generator=generator) for _ in range(2))
        relaxed_RD = torch.sigmoid((self.logits_RD + one.log() - other.log()) / temperature)
        if hard:
            relaxed_RD = (relaxed_RD.detach() > 0.5) + (relaxed_RD - relaxed_RD.detach())
        return relaxed_RD.to(self.scores_RD.dtype)

    def support(self) -> Support:
        return self.everything().positive()

    def is_exact(self) -> Tensor:
        return self.scores_RD.new_ones(len(self.scores_RD), dtype=torch.bool)


class ListedBits(BitDistribution):
    """Structures with probabilities.

    Args:
        structures_RSD: the bit-vectors; those of probability zero only fill the list up.
        probs_RS: they sum to one and carry gradients to the scores.
        is_exact_R: where nothing was left out of the list.
    """

    def __init__(self, scores_RD: Tensor, structures_RSD: Tensor, probs_RS: Tensor, is_exact_R: Tensor) -> None:
        super().__init__(scores_RD)
        self.structures_RSD = structures_RSD.detach()
        self.probs_RS = probs_RS
        self.is_exact_R = is_exact_R

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return self._pick(draw(self.probs_RS, generator))

    def log_prob(self, values_MRD: Tensor) -> Tensor:
        # As signs, two vectors are equal where their product counts every bit.
        signs_MRD, signs_RSD = (2 * bits.to(self.probs_RS.dtype) - 1 for bits in (values_MRD, self.structures_RSD))
        is_same_MRS = torch.einsum("mrd,rsd->mrs", signs_MRD, signs_RSD) == signs_RSD.shape[-1]
        return log_of(torch.where(is_same_MRS, self.probs_RS, 0.0).sum(-1))

    def entropy(self) -> Tensor:
        return entropy_of(self.probs_RS, log_of(self.probs_RS))

    def mode(self) -> Tensor:
        return self._pick(self.probs_RS.argmax(-1))

    def relaxed(self, temperature: float, hard: bool, generator: torch.Generator | None) -> Tensor:
        raise ValueError(
            "mapping must be Independent() for a relaxed sample: noise draws from independent bits, not from a list of "
            "bit-vectors; use BitVector(scores), or a marginal estimator with this mapping"
        )

    def support(self) -> Support:
        example, place = (self.probs_RS.detach() > 0).nonzero(as_tuple=True)
        return Support(self.structures_RSD[example, place], self.probs_RS[example, place], example)

    def is_exact(self) -> Tensor:
        return self.is_exact_R

    def _pick(self, place_R: Tensor) -> Tensor:
        return self.structures_RSD[torch.arange(len(place_R), device=place_R.device), place_R]
