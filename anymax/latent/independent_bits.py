"""Bits that are drawn independently of one another.

Shapes: R rows, D bits, M samples.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.latent.bit_distribution import BitDistribution
from anymax.latent.support import Support
from anymax.mappings.arguments import computed_in


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
