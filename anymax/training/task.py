"""What the training loop needs of whatever is trained."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from anymax.data.corpus import Split
from anymax.training.progress import Totals


@dataclass(frozen=True)
class Step:
    """What a batch gave.

    Args:
        loss_sum: the sum of the losses of all items, of which gradients are taken. It depends on every parameter that
            is trained, also where a rank has no items.
        count: how many items the batch has, on this rank.
        carry: what the next batch reads, without gradients.
        log: values to record with the loss, under the same names in every step and on every rank; the record has what
            `Task.logged` makes of their sums over batches.
        penalty: the part of `loss_sum` that is no loss of items; records leave it out.
        rate: the optimizer's rate is multiplied by it in this step, by the mean where a step has several batches.
    """

    loss_sum: Tensor
    count: int
    carry: Any = None
    log: Mapping[str, float] = field(default_factory=dict)
    penalty: float = 0.0
    rate: float = 1.0


class Batches(Protocol):
    """Epochs of batches, as `anymax.data.Batches` are: a loop over it runs to the end of the current epoch."""

    epoch: int
    position: int
    """Which batch of the epoch comes next."""

    def __len__(self) -> int: ...
    def length(self, epoch: int) -> int:
        """How many batches an epoch has; `len` is that of the current one."""
        ...

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Task(ABC):
    """A model, the data it learns from, its loss, and how well it does.

    The loop wraps the model for several processes and gives the wrapped one to `step`. All ranks call every method at
    the same time, so a method may talk to the other ranks.
    """

    model: nn.Module
    """The bare model, made alike on every rank. It is moved to the device of the ranks before training."""
    goal: str
    """The metric of `evaluate` that is best when smallest."""
    item: str
    """What is counted, as "token"."""

    @abstractmethod
    def batches(self, split: Split) -> Batches:
        """This rank's share of the batches; equally many for every rank."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Any, carry: Any) -> Step:
        """The loss of a batch, which this moves to the device. Only the model's forward may be called.

        Args:
            carry: what the batch before gave; that of `new_carry` for the first of an epoch.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """How well the model does on a split, the same on every rank; called in evaluation mode without gradients."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what belongs to the run besides weights. Called once, by the first rank."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Hashes of what the weights depend on, as the lexicon; checkpoints of another identity are refused."""

    def new_carry(self) -> Any:
        """What the first batch of an epoch reads; None where nothing is carried."""
        return None

    def carry_state(self, carry: Any) -> dict[str, Tensor]:
        """A carry as tensors that later steps do not write into; empty where there is nothing to save.

        The first dimension of each is the rows of this rank's batches. A checkpoint holds those of all ranks, one below
        the other, so that a run may go on with another number of ranks.
        """
        return {}

    def load_carry(self, tensors: dict[str, Tensor]) -> Any:
        """The carry of what `carry_state` gave. The rows are this rank's, shared out as `anymax.data.Batches` does."""
        return None

    def logged(self, totals: Totals) -> dict[str, float]:
        """The `log` of a record, from the sums over the batches since the record before: by default their means."""
        return {name: value / totals.batches for name, value in totals.log.items()}

    def watch(self) -> dict[str, float]:
        """Values of the model to record, as what each head of attention learned."""
        return {}

    def rates(self) -> dict[nn.Parameter, float]:
        """Parameters that learn at another rate than the optimizer's, and what theirs is multiplied by."""
        return {}

    def undecayed(self) -> set[nn.Parameter]:
        """Parameters that weight decay leaves alone."""
        return set()

    def groups(self) -> list[list[nn.Module]]:
        """Modules that FSDP2 shards together, in the order they run; tied ones form one group. The rest is one more."""
        return []
