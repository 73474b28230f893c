"""Configs of estimators and of distributions over bit-vectors, as plain data that imports no torch.

`build` makes the estimator or the mapping.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from anymax.latent import (
        NVIL,
        DenseMarginal,
        Gumbel,
        Independent,
        ScoreFunction,
        SparseMap,
        SparseMarginal,
        StraightThroughGumbel,
        SumAndSample,
        TopKSparsemax,
    )


@dataclass(frozen=True)
class DenseMarginalConfig:
    """The exact sum over all values.

    Example:
        >>> anymax.latent.DenseMarginalConfig().build(context_size=8)
        DenseMarginal()
    """

    def build(self, context_size: int) -> DenseMarginal:
        """The estimator, for contexts of `context_size` numbers."""
        from anymax.latent import DenseMarginal

        return DenseMarginal()


@dataclass(frozen=True)
class SparseMarginalConfig:
    """The exact sum over the values that have a probability above zero.

    Example:
        >>> anymax.latent.SparseMarginalConfig().build(context_size=8)
        SparseMarginal()
    """

    def build(self, context_size: int) -> SparseMarginal:
        """The estimator, for contexts of `context_size` numbers."""
        from anymax.latent import SparseMarginal

        return SparseMarginal()


@dataclass(frozen=True)
class ScoreFunctionConfig:
    """One sample, with the gradient of its log-probability.

    Args:
        baseline: taken off the loss: the mean of losses before, or the loss of a second sample.
        published: let gradients flow into the second sample's loss.

    Example:
        >>> anymax.latent.ScoreFunctionConfig("average").build(context_size=8).baseline
        'average'
    """

    baseline: Literal["average", "sample"] | None = None
    _: KW_ONLY
    published: bool = False

    def build(self, context_size: int) -> ScoreFunction:
        """The estimator, for contexts of `context_size` numbers."""
        from anymax.latent import ScoreFunction

        return ScoreFunction(self.baseline, published=self.published)


@dataclass(frozen=True)
class NVILConfig:
    """One sample, with the gradient of its log-probability and a baseline that a network predicts (NVIL).

    Args:
        hidden: the width of the network's three layers.

    Example:
        >>> anymax.latent.NVILConfig(hidden=16).build(context_size=8).baseline[0]
        Linear(in_features=8, out_features=16, bias=True)
    """

    hidden: int = 512

    def build(self, context_size: int) -> NVIL:
        """The estimator, for contexts of `context_size` numbers."""
        from anymax.latent import NVIL

        return NVIL(context_size, (self.hidden,) * 3)


@dataclass(frozen=True)
class GumbelConfig:
    """One relaxed sample, whose temperature falls with the steps: max(floor, exp(-rate * steps)).

    Args:
        rate: how fast the temperature falls, per step.
        hard: the value is discrete, the gradient that of the relaxed one (straight-through).
        floor: the least temperature.
        every: steps from one temperature to the next.
        published: evaluate at relaxed samples too; where `hard`, bits are the most likely ones and not a sample.

    Example:
        >>> estimator = anymax.latent.GumbelConfig(rate=1e-4, hard=True).build(context_size=8)
        >>> type(estimator).__name__, estimator.temperature
        ('StraightThroughGumbel', 1.0)
    """

    rate: float
    _: KW_ONLY
    hard: bool = False
    floor: float = 0.5
    every: int = 1000
    published: bool = False

    def build(self, context_size: int) -> Gumbel | StraightThroughGumbel:
        """The estimator, for contexts of `context_size` numbers."""
        from anymax.latent import AnnealedTemperature, Gumbel, StraightThroughGumbel

        kind = StraightThroughGumbel if self.hard else Gumbel
        annealed = AnnealedTemperature(self.rate, floor=self.floor, every=self.every)
        return kind(annealed=annealed, published=self.published)


@dataclass(frozen=True)
class SumAndSampleConfig:
    """The exact sum over the likeliest values, and one sample of the others.

    Args:
        top: number of values that are summed.
        baseline: taken off the loss of the sample: the mean of losses before.

    Example:
        >>> anymax.latent.SumAndSampleConfig(top=3).build(context_size=8)
        SumAndSample(top=3, baseline=None)
    """

    top: int = 1
    _: KW_ONLY
    baseline: Literal["average"] | None = None

    def build(self, context_size: int) -> SumAndSample:
        """The estimator, for contexts of `context_size` numbers."""
        from anymax.latent import SumAndSample

        return SumAndSample(self.top, baseline=self.baseline)


EstimatorConfig = (
    DenseMarginalConfig | SparseMarginalConfig | ScoreFunctionConfig | NVILConfig | GumbelConfig | SumAndSampleConfig
)


@dataclass(frozen=True)
class IndependentConfig:
    """Every bit by itself.

    Example:
        >>> anymax.latent.IndependentConfig().build()
        Independent()
    """

    def build(self) -> Independent:
        """The mapping."""
        from anymax.latent import Independent

        return Independent()

    def toy(self) -> Self:
        """The same: nothing in it has a size."""
        return self


@dataclass(frozen=True)
class TopKSparsemaxConfig:
    """Sparsemax over the k best bit-vectors.

    Args:
        k: number of bit-vectors.

    Example:
        >>> anymax.latent.TopKSparsemaxConfig(k=10).build()
        TopKSparsemax(k=10)
    """

    k: int

    def build(self) -> TopKSparsemax:
        """The mapping."""
        from anymax.latent import TopKSparsemax

        return TopKSparsemax(self.k)

    def toy(self) -> Self:
        """The same at a size for tests, of few bit-vectors."""
        return replace(self, k=min(self.k, 4))


@dataclass(frozen=True)
class SparseMapConfig:
    """The few bit-vectors whose mean are the sparse marginals of the bits.

    Args:
        budget: the most bits that may be on; None leaves all.
        decomposition: how marginals become a mean of bit-vectors; None takes what fits: chain, or systematic with a
            budget.

    Example:
        >>> anymax.latent.SparseMapConfig(budget=2).build()
        SparseMap(polytope=Budget(k=2, symmetric=True), decomposition=None)
    """

    budget: int | None = None
    _: KW_ONLY
    decomposition: Literal["chain", "systematic", "active set"] | None = None

    def build(self) -> SparseMap:
        """The mapping."""
        from anymax.latent import SparseMap
        from anymax.structured import Bits, Budget

        return SparseMap(Bits() if self.budget is None else Budget(self.budget), self.decomposition)

    def toy(self) -> Self:
        """The same at a size for tests, with a budget for few bits."""
        return self if self.budget is None else replace(self, budget=3)


BitMappingConfig = IndependentConfig | TopKSparsemaxConfig | SparseMapConfig


def check_relaxable(estimator: EstimatorConfig, mapping: object) -> None:
    """Refuse relaxed samples of a distribution that has none."""
    if isinstance(estimator, GumbelConfig) and mapping != "softmax":
        raise ValueError(
            f"mapping must be softmax for the estimator {type(estimator).__name__}, which has no other relaxed "
            f"samples, got {mapping}; leave mapping out, or take another estimator"
        )
