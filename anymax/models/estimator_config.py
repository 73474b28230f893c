"""How a model with a discrete latent finds its gradient, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from anymax.latent import Estimator


@dataclass(frozen=True)
class DenseSum:
    """The exact sum over all values."""

    def build(self, context_size: int) -> Estimator:
        """The estimator, for contexts of so many numbers."""
        from anymax.latent import DenseMarginal

        return DenseMarginal()


@dataclass(frozen=True)
class SparseSum:
    """The exact sum over the values that have a probability above zero."""

    def build(self, context_size: int) -> Estimator:
        """The estimator, for contexts of so many numbers."""
        from anymax.latent import SparseMarginal

        return SparseMarginal()


@dataclass(frozen=True)
class Score:
    """One sample, with the gradient of its log-probability.

    Args:
        baseline: taken off the loss: the mean of losses before, or the loss of a second sample.
        published: let gradients flow into the second sample's loss.
    """

    baseline: Literal["average", "sample"] | None = None
    _: KW_ONLY
    published: bool = False

    def build(self, context_size: int) -> Estimator:
        """The estimator, for contexts of so many numbers."""
        from anymax.latent import ScoreFunction

        return ScoreFunction(self.baseline, published=self.published)


@dataclass(frozen=True)
class LearnedBaseline:
    """One sample, with the gradient of its log-probability and a baseline that a network predicts (NVIL).

    Args:
        hidden: the width of the network's three layers.
    """

    hidden: int = 512

    def build(self, context_size: int) -> Estimator:
        """The estimator, for contexts of so many numbers."""
        from anymax.latent import NVIL

        return NVIL(context_size, (self.hidden,) * 3)


@dataclass(frozen=True)
class Relaxed:
    """One relaxed sample, whose temperature falls with the steps: max(floor, exp(-rate * steps)).

    Args:
        hard: the value is discrete, the gradient that of the relaxed one (straight-through).
        every: steps from one temperature to the next.
        published: evaluate at relaxed samples too; where `hard`, bits are the most likely ones and not a sample.
    """

    rate: float
    _: KW_ONLY
    hard: bool = False
    floor: float = 0.5
    every: int = 1000
    published: bool = False

    def build(self, context_size: int) -> Estimator:
        """The estimator, for contexts of so many numbers."""
        from anymax.latent import AnnealedTemperature, Gumbel, StraightThroughGumbel

        kind = StraightThroughGumbel if self.hard else Gumbel
        annealed = AnnealedTemperature(self.rate, floor=self.floor, every=self.every)
        return kind(annealed=annealed, published=self.published)


@dataclass(frozen=True)
class SumSample:
    """The exact sum over the likeliest values, and one sample of the others.

    Args:
        top: how many values are summed.
        baseline: taken off the loss of the sample: the mean of losses before.
    """

    top: int = 1
    _: KW_ONLY
    baseline: Literal["average"] | None = None

    def build(self, context_size: int) -> Estimator:
        """The estimator, for contexts of so many numbers."""
        from anymax.latent import SumAndSample

        return SumAndSample(self.top, baseline=self.baseline)


EstimatorConfig = DenseSum | SparseSum | Score | LearnedBaseline | Relaxed | SumSample


def check_relaxable(estimator: EstimatorConfig, mapping: object) -> None:
    """Refuse relaxed samples of a distribution that has none."""
    if isinstance(estimator, Relaxed) and mapping != "softmax":
        raise ValueError(
            f"mapping must be softmax for the estimator {type(estimator).__name__}, which has no other relaxed "
            f"samples, got {mapping}; leave mapping out, or take another estimator"
        )
