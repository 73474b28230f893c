"""A vector of bits, and the mappings from scores to a distribution over bit-vectors."""

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.latent.bit_distributions import BitDistribution, IndependentBits, ListedBits
from anymax.latent.latent import Latent, Support
from anymax.mappings import sparsemax
from anymax.mappings.arguments import computed_in
from anymax.structured import Bits, Polytope, sparsemap, topk_bits


@runtime_checkable
class BitMapping(Protocol):
    """Gives the distribution that scores (rows, bits) stand for."""

    def distribution(self, scores: Tensor) -> BitDistribution: ...


@dataclass(frozen=True)
class Independent:
    """Every bit is on with the probability sigmoid(score), whatever the others are.

    Example:
        >>> from anymax.latent import BitVector, Independent
        >>> latent = BitVector(torch.tensor([[0.0, 2.0]]), Independent())
        >>> latent.log_prob(torch.tensor([[1.0, 1.0]])).exp()
        tensor([0.4404])
    """

    def distribution(self, scores: Tensor) -> BitDistribution:
        return IndependentBits(scores)


@dataclass(frozen=True)
class TopKSparsemax:
    """Sparsemax over the k best bit-vectors, where a bit-vector scores what its bits that are on score together.

    Where fewer than k end above zero, it is sparsemax over all bit-vectors: `BitVector.is_exact` checks this.

    Args:
        k: number of bit-vectors, at least 1.

    Correia et al. 2020.

    Example:
        >>> from anymax.latent import BitVector, TopKSparsemax
        >>> support = BitVector(torch.tensor([[1.0, -0.2, 0.3]]), TopKSparsemax(k=4)).support()
        >>> support.values, support.probs
        (tensor([[1., 0., 1.],
                [1., 1., 1.],
                [1., 0., 0.]]), tensor([0.5000, 0.3000, 0.2000]))
    """

    k: int

    def __post_init__(self) -> None:
        check_counts(k=self.k)

    def distribution(self, scores: Tensor) -> BitDistribution:
        num_bits = scores.shape[-1]
        wide = scores.to(computed_in(scores.dtype))
        top = topk_bits(wide, self.k)
        # Measured from the best bit-vector: their own scores may be too large to tell them apart.
        flips = top.bits - top.bits[:, :1]
        probs = sparsemax(torch.where(flips == 0, 0, flips * wide[:, None]).sum(-1))
        is_exact = ((probs > 0).sum(-1) < self.k) | (self.k == 2**num_bits)
        return ListedBits(scores, top.bits.to(scores.dtype), probs, is_exact)


@dataclass(frozen=True)
class SparseMap:
    """SparseMAP: the few bit-vectors whose mean are the sparse marginals of a polytope.

    Args:
        polytope: which bit-vectors there are: `Bits()` for all, `Budget(k)` for those with at most k bits on.
        decomposition: how the marginals are written as a mean of bit-vectors, by the names of
            `anymax.structured.sparsemap`; the expected loss depends on it. By default the polytope's own.

    Niculae et al. 2018, Correia et al. 2020.

    Example:
        >>> from anymax.latent import BitVector, SparseMap
        >>> from anymax.structured import Budget
        >>> support = BitVector(torch.tensor([[2.0, 1.0, 0.7, -1.0]]), SparseMap(Budget(k=2))).support()
        >>> support.values, support.probs
        (tensor([[1., 1., 0., 0.],
                [1., 0., 1., 0.]]), tensor([0.5750, 0.4250]))
    """

    polytope: Polytope = field(default_factory=Bits)
    decomposition: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.polytope, Polytope) or self.polytope.event_dim != 1:
            raise ValueError(f"polytope must be one of bit-vectors, Bits() or Budget(k), got {self.polytope!r}")
        self.polytope.decomposition(self.decomposition)

    def distribution(self, scores: Tensor) -> BitDistribution:
        found = sparsemap(scores.to(computed_in(scores.dtype)), self.polytope, decomposition=self.decomposition)
        return ListedBits(scores, found.structures.to(scores.dtype), found.probs, found.converged)


INDEPENDENT = Independent()


class BitVector(Latent):
    """Many yes-or-no choices at once: values are vectors of zeros and ones.

    Args:
        scores: (*batch, bits).
        mapping: `Independent()` draws each bit by itself; `TopKSparsemax(k)` and `SparseMap(polytope)` leave a few
            bit-vectors with all the probability, which a sparse marginal sums exactly.

    Example:
        >>> from anymax.latent import BitVector, SparseMarginal, TopKSparsemax
        >>> scores = torch.tensor([[1.0, -0.2, 0.3]], requires_grad=True)
        >>> latent = BitVector(scores, TopKSparsemax(k=4))
        >>> found = SparseMarginal()(latent, lambda bits, example: bits.sum(-1))  # the loss is the number of bits
        >>> found.surrogate.mean().backward()
        >>> found.loss, found.calls, latent.is_exact()
        (tensor([2.1000]), tensor([3]), tensor([True]))
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
