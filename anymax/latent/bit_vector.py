"""A vector of bits, with any mapping from scores to a distribution over bit-vectors."""

import math

import torch
from torch import Tensor

from anymax.latent.bit_mappings import BitMapping, Independent
from anymax.latent.latent import Latent
from anymax.latent.support import Support

INDEPENDENT = Independent()


class BitVector(Latent):
    """Many yes-or-no choices at once: values are vectors of zeros and ones.

    Args:
        scores: (*batch, bits).
        mapping: `Independent()` draws each bit by itself; `TopKSparsemax(k)` and `SparseMap(polytope)` leave a few
            bit-vectors with all the probability, which a sparse marginal sums exactly.
    """

    def __init__(self, scores: Tensor, mapping: BitMapping = INDEPENDENT) -> None:
        super().__init__(scores)
        if isinstance(mapping, type) or not isinstance(mapping, BitMapping):
            raise TypeError(f"mapping must be Independent(), TopKSparsemax(k) or SparseMap(polytope), got {mapping!r}")
        self.mapping = mapping
        self._rows = mapping.distribution(scores.reshape(self.num_rows, self.size))

    def is_exact(self) -> Tensor:
        """Where the distribution is certain to be what it approximates, (*batch).

        For `TopKSparsemax` where fewer than k bit-vectors have probability, for `SparseMap` where the solver converged,
        for `Independent` everywhere.
        """
        return self._rows.is_exact().reshape(self.batch_shape)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        return self._rows.sample(generator).reshape(self.scores.shape)

    def log_prob(self, values: Tensor) -> Tensor:
        self.check_event(values)
        are_bits = ((values == 0) | (values == 1)).all(-1)
        sample_shape = values.shape[: values.dim() - self.scores.dim()]
        log_probs = self._rows.log_prob(values.reshape(math.prod(sample_shape), self.num_rows, self.size))
        return log_probs.reshape(are_bits.shape).masked_fill(~are_bits, -torch.inf)

    def entropy(self) -> Tensor:
        return self._rows.entropy().reshape(self.batch_shape)

    def mode(self) -> Tensor:
        return self._rows.mode().reshape(self.scores.shape)

    def relaxed(self, temperature: float, *, hard: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """A binary concrete sample, sigmoid((scores + logistic noise) / temperature), for `Independent` alone.

        Maddison et al. 2017.
        """
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be finite and above 0, got {temperature}; sample is the limit at 0")
        return self._rows.relaxed(temperature, hard, generator).reshape(self.scores.shape)

    def support(self) -> Support:
        return self._rows.support()

    def everything(self) -> Support:
        return self._rows.everything()
