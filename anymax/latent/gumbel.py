"""Gumbel estimators: a relaxed sample that gradients pass through, as it is or made hard."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anymax.latent.bit_vector import BitVector
from anymax.latent.estimator import Estimator, LossGiven, RowEstimate, evaluate_rows, one_call_each
from anymax.latent.latent import Latent


@dataclass(frozen=True)
class AnnealedTemperature:
    """A temperature that falls with the steps: max(floor, exp(-rate * step)), computed anew every `every` steps.

    Args:
        rate: how fast it falls, per step.
        floor: where it stops, at most 1.
        every: the number of steps it keeps its value for.

    Example:
        >>> from anymax.latent import AnnealedTemperature, Gumbel
        >>> annealed = AnnealedTemperature(rate=1e-4, floor=0.5)
        >>> [round(annealed.at(step), 2) for step in (0, 999, 1000, 10_000)]
        [1.0, 1.0, 0.9, 0.5]
        >>> Gumbel(annealed=annealed).temperature
        1.0
    """

    rate: float
    floor: float = 0.5
    every: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.rate < math.inf:
            raise ValueError(f"rate must be a finite number of at least 0, got {self.rate}")
        if not 0 < self.floor <= 1:
            raise ValueError(f"floor must be above 0 and at most 1, where the temperature starts, got {self.floor}")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be an integer of at least 1, got {self.every}")

    def at(self, step: int) -> float:
        """The temperature at a step, from 0 on."""
        from anymax.mappings import annealed_tau

        return annealed_tau(step - step % self.every, rate=self.rate, floor=self.floor)


class Gumbel(Estimator):
    """The loss at a relaxed sample: little noise, and a bias that falls with the temperature.

    The loss must make sense between the corners, where relaxed values lie. In evaluation mode it is taken at discrete
    samples. For softmax choices and independent bits.

    Args:
        temperature: of the relaxation, above 0; part of the state dict, and can be set anew at any time.
        annealed: lets the temperature fall with the number of training calls instead, which is part of the state dict.
        published: evaluate at relaxed samples too, as the code of Correia et al. 2020 does.

    Jang et al. 2017, Maddison et al. 2017.

    Example:
        >>> from anymax.latent import Choice, Gumbel
        >>> scores, costs = torch.zeros(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> found = Gumbel(temperature=0.5)(Choice(scores), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> (scores.grad != 0).all()
        tensor(True)
    """

    tau: Tensor
    steps: Tensor

    def __init__(
        self, temperature: float = 1.0, *, annealed: AnnealedTemperature | None = None, published: bool = False
    ) -> None:
        super().__init__()
        if annealed is not None and temperature != 1.0:
            raise ValueError(f"temperature must be left at 1.0 where annealed gives it, got {temperature}")
        self.annealed = annealed
        self.published = published
        if annealed is None:
            self.register_buffer("tau", torch.zeros(()))
            self.temperature = temperature
        else:
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @property
    def temperature(self) -> float:
        """What the next call in training relaxes with; held in single precision."""
        return self.tau.item() if self.annealed is None else self.annealed.at(int(self.steps))

    @temperature.setter
    def temperature(self, value: float) -> None:
        if self.annealed is not None:
            raise ValueError(f"temperature must be left to {self.annealed}, got {value}; or make it without annealed")
        if not 0 < value < math.inf:
            raise ValueError(f"temperature must be finite and above 0, got {value}")
        self.tau.fill_(value)

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        choice = self.relax(latent) if self.training or self.published else latent.sample()
        losses = evaluate_rows(loss_given, choice)
        if self.annealed is not None and self.training:
            self.steps += 1
        return RowEstimate(losses, one_call_each(latent))

    def relax(self, latent: Latent) -> Tensor:
        """The sample that gradients pass through."""
        return latent.relaxed(self.temperature)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature:g}, annealed={self.annealed}, published={self.published}"


class StraightThroughGumbel(Gumbel):
    """The loss at a discrete sample with the gradient of the relaxed one: biased at every temperature.

    Args:
        temperature: as in `Gumbel`.
        annealed: as in `Gumbel`.
        published: for bits, the value is the most likely bit-vector instead of the sample, in evaluation too, as in the
            code of Correia et al. 2020; for a choice nothing changes.

    Example:
        >>> from anymax.latent import Choice, StraightThroughGumbel
        >>> scores, costs = torch.zeros(5, 3, requires_grad=True), torch.tensor([1.0, 2.0, 6.0])
        >>> found = StraightThroughGumbel(temperature=0.5)(Choice(scores), lambda choice, example: choice @ costs)
        >>> found.surrogate.mean().backward()
        >>> torch.isin(found.loss, costs).all(), (scores.grad != 0).all()  # of discrete choices, with a gradient
        (tensor(True), tensor(True))
    """

    def relax(self, latent: Latent) -> Tensor:
        if not (self.published and isinstance(latent, BitVector)):
            return latent.relaxed(self.temperature, hard=True)
        relaxed = latent.relaxed(self.temperature)
        return latent.mode() + (relaxed - relaxed.detach())
