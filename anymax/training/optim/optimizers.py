"""Optimizers as plain data that imports no torch until one is built.

Torch's are built fused where torch can, which on the CPU takes a third of the time or less and changes only the last
digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from anymax.checks import check_counts, check_not_negative, check_positive, check_shares, given
from anymax.training.optim.schedules import AtEpoch, NonMonotone, Trigger

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    Group = dict[str, Any]
    # Or groups of them as torch takes them: "params", and what else the group should hold.
    Parameters = Iterable[nn.Parameter] | Iterable[Group]


class OptimizerConfig(ABC):
    """The config of an optimizer."""

    # Tensors of a parameter's size that the optimizer keeps for it.
    held: ClassVar[int]
    lr: float

    @abstractmethod
    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""

    @property
    def waits_for(self) -> Trigger | None:
        """When the loop has it begin to average; None where it never does."""
        return None

    def toy(self) -> Self:
        """The same for a run of a few steps."""
        return self


@dataclass(frozen=True)
class NesterovConfig(OptimizerConfig):
    """Steps along a moving sum of gradients that looks one step ahead; the same with a changing learning rate.

    Args:
        lr: the learning rate that the schedule multiplies.
        momentum: how much of the sum stays from step to step.
        weight_decay: this share of the parameters is added to their gradients.

    Example:
        >>> from anymax.training import NesterovConfig
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.ones(1)
        >>> NesterovConfig(lr=0.1, momentum=0.9).build([weight]).step()
        >>> round(weight.item(), 3)
        0.81
    """

    held: ClassVar[int] = 1

    lr: float
    _: KW_ONLY
    momentum: float = 0.99
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_positive(lr=self.lr, momentum=self.momentum)
        check_shares(momentum=self.momentum)
        check_not_negative(weight_decay=self.weight_decay)

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""
        from torch.optim import SGD

        groups = _grouped(parameters)
        fused = not _are_sharded(groups)
        return SGD(groups, self.lr, self.momentum, nesterov=True, weight_decay=self.weight_decay, fused=fused)


@dataclass(frozen=True)
class AdagradConfig(OptimizerConfig):
    """Each entry's learning rate falls with the sum of its squared gradients. Duchi et al. 2011.

    Args:
        lr: the learning rate that the schedule multiplies.
        weight_decay: this share of the parameters is added to their gradients.
        initial_accumulator: where the sums begin.
        eps: added to the root of the sums.

    Example:
        >>> from anymax.training import AdagradConfig
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.ones(1)
        >>> AdagradConfig(lr=0.5).build([weight]).step()
        >>> round(weight.item(), 3)
        0.5
    """

    held: ClassVar[int] = 1

    lr: float
    _: KW_ONLY
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        check_positive(lr=self.lr)
        check_not_negative(weight_decay=self.weight_decay, initial_accumulator=self.initial_accumulator, eps=self.eps)

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""
        from torch.optim import Adagrad as TorchAdagrad

        groups = _grouped(parameters)
        return TorchAdagrad(
            groups,
            self.lr,
            weight_decay=self.weight_decay,
            initial_accumulator_value=self.initial_accumulator,
            eps=self.eps,
            fused=not _are_sharded(groups),
        )


@dataclass(frozen=True)
class AdamConfig(OptimizerConfig):
    """Moving means of gradients over the root of those of their squares. Kingma and Ba 2015.

    Args:
        lr: the learning rate that the schedule multiplies.
        betas: how much of the two moving means stays from step to step.
        eps: added to the root.
        weight_decay: this share of the parameters is added to their gradients.

    Example:
        >>> from anymax.training import AdamConfig
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.ones(1)
        >>> AdamConfig(lr=0.1, betas=(0.9, 0.98)).build([weight]).step()
        >>> round(weight.item(), 3)
        0.9
    """

    held: ClassVar[int] = 2

    lr: float
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_adam(self.lr, self.betas, self.eps, self.weight_decay)

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""
        from torch.optim import Adam as TorchAdam

        return TorchAdam(_grouped(parameters), self.lr, self.betas, self.eps, self.weight_decay, fused=True)


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    """Adam with weight decay apart from the gradients. Loshchilov and Hutter 2019.

    Args:
        lr: the learning rate that the schedule multiplies.
        betas: how much of the two moving means stays from step to step.
        eps: added to the root.
        weight_decay: decoupled decay per step, times the learning rate; of matrices only, so that
            biases, norms and everything else of one dimension stay as they are.

    Example:
        >>> from anymax.training import AdamWConfig
        >>> weight = torch.nn.Parameter(torch.ones(1, 1))
        >>> weight.grad = torch.ones(1, 1)
        >>> AdamWConfig(lr=0.1, weight_decay=0.1).build([weight]).step()
        >>> round(weight.item(), 3)
        0.89
    """

    held: ClassVar[int] = 2

    lr: float
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_adam(self.lr, self.betas, self.eps, self.weight_decay)

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""
        from torch.optim import AdamW as TorchAdamW

        groups = [part for group in _grouped(parameters) for part in _matrices_decayed(group, self.weight_decay)]
        return TorchAdamW(groups, self.lr, self.betas, self.eps, fused=True)


@dataclass(frozen=True)
class BertAdamConfig(OptimizerConfig):
    """The Adam that BERT was published with: no bias correction, and a clip for each parameter. Devlin et al. 2019.

    With `Linear` it is the whole of what is called BertAdam. As its first steps are taken with moving means that begin
    at zero, they are small ones.

    Args:
        lr: the learning rate that the schedule multiplies.
        betas: how much of the two moving means stays from step to step.
        eps: added to the root.
        weight_decay: decoupled decay per step, times the learning rate; of matrices only, so that
            biases, norms and everything else of one dimension stay as they are.
        clip: the largest norm of the gradient of each parameter by itself; None for any.

    Example:
        >>> from anymax.training import BertAdamConfig
        >>> weight = torch.nn.Parameter(torch.ones(1, 1))
        >>> weight.grad = torch.ones(1, 1)
        >>> BertAdamConfig(lr=0.01).build([weight]).step()
        >>> round(weight.item(), 3)
        0.968
    """

    held: ClassVar[int] = 2

    lr: float
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        _check_adam(self.lr, self.betas, self.eps, self.weight_decay)
        check_positive(**given(clip=self.clip))

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""
        from anymax.training.optim.bert_adam import BertAdam

        groups = [part for group in _grouped(parameters) for part in _matrices_decayed(group, self.weight_decay)]
        return BertAdam(groups, self.lr, self.betas, self.eps, clip=self.clip)


@dataclass(frozen=True)
class SGDConfig(OptimizerConfig):
    """Steps against the gradient, with nothing held between them.

    Args:
        lr: the learning rate that the schedule multiplies.
        weight_decay: this share of the parameters is added to their gradients.

    Example:
        >>> from anymax.training import SGDConfig
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.ones(1)
        >>> SGDConfig(lr=0.5).build([weight]).step()
        >>> round(weight.item(), 3)
        0.5
    """

    held: ClassVar[int] = 0

    lr: float
    _: KW_ONLY
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_positive(lr=self.lr)
        check_not_negative(weight_decay=self.weight_decay)

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters."""
        from torch.optim import SGD

        groups = _grouped(parameters)
        return SGD(groups, self.lr, weight_decay=self.weight_decay, fused=not _are_sharded(groups))


@dataclass(frozen=True)
class AveragedSGDConfig(OptimizerConfig):
    """SGD, and from some step on the mean of where its steps led, which is then what is evaluated and saved.

    Args:
        lr: the learning rate that the schedule multiplies.
        weight_decay: this share of the parameters is added to their gradients.
        begin: when averaging begins.
        decay: weight decay while averaging, times the learning rate.
        power: how quickly the learning rate falls where there is a decay: lr / (1 + decay * lr * steps)**power.
        start: how many steps the mean skips when averaging begins.
        published: average as the published results did, by `torch.optim.ASGD`: it skips one more iterate, and a
            changed learning rate takes effect only at the next step.

    Polyak and Juditsky 1992; Merity et al. 2018 on when to begin.

    Example:
        >>> from anymax.training import AveragedSGDConfig
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.ones(1)
        >>> AveragedSGDConfig(lr=0.5).build([weight]).step()
        >>> round(weight.item(), 3)
        0.5
    """

    held: ClassVar[int] = 1

    lr: float
    _: KW_ONLY
    weight_decay: float = 0.0
    begin: NonMonotone | AtEpoch = field(default_factory=NonMonotone)
    decay: float = 0.0
    power: float = 0.75
    start: int = 0
    published: bool = False

    def __post_init__(self) -> None:
        check_positive(lr=self.lr)
        check_not_negative(weight_decay=self.weight_decay, decay=self.decay, power=self.power)
        check_counts(0, start=self.start)

    @property
    def waits_for(self) -> Trigger:
        return self.begin

    def toy(self) -> Self:
        """The same from the first step on, as a toy does not live to see evaluations get worse."""
        return replace(self, begin=AtEpoch(0))

    def build(self, parameters: Parameters) -> Optimizer:
        """The optimizer of these parameters; the loop starts its averaging."""
        from anymax.training.optim.averaged_sgd import AveragedSGD

        return AveragedSGD(
            _grouped(parameters),
            self.lr,
            weight_decay=self.weight_decay,
            decay=self.decay,
            power=self.power,
            start=self.start,
            published=self.published,
        )


def _grouped(parameters: Parameters) -> list[Group]:
    entries: list[Any] = list(parameters)
    return entries if entries and isinstance(entries[0], dict) else [{"params": entries}]


def _matrices_decayed(group: Group, weight_decay: float) -> list[Group]:
    """The group as two, of which only that of the matrices has a weight decay."""
    decayed = [parameter for parameter in group["params"] if parameter.dim() >= 2]
    kept = [parameter for parameter in group["params"] if parameter.dim() < 2]
    return [
        {"weight_decay": decay, **group, "params": part}
        for part, decay in ((decayed, weight_decay), (kept, 0.0))
        if part
    ]


def _are_sharded(groups: list[Group]) -> bool:
    """Whether FSDP2 divided them among ranks; torch fuses Adam for those, and no other."""
    from anymax.distributed.sharding import own_part

    return any(own_part(parameter) is not parameter for group in groups for parameter in group["params"])


def _check_adam(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    check_positive(lr=lr)
    check_not_negative(eps=eps, weight_decay=weight_decay)
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers from 0 to below 1, got {betas}")
