"""Bit-vectors of which a few, in a list, have all the probability.

Shapes: R rows, D bits, S structures, M samples.
"""

import torch
from torch import Tensor

from anymax.latent.bit_distribution import BitDistribution
from anymax.latent.probabilities import draw, entropy_of, log_of
from anymax.latent.support import Support


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
