"""Task: the interface between the training loop and what is trained."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.display import Texts
from anymax.training.latent_view import LatentView
from anymax.training.observed import Observed
from anymax.training.progress import Totals
from anymax.training.task_config import MetricsReport, Report


@dataclass(frozen=True)
class Step:
    """The loss of a batch, and what to record of it.

    Args:
        loss_sum: the sum of the losses of all items, of which gradients are taken. It depends on every parameter that
            is trained, also where a rank has no items.
        count: how many items the batch has, on this rank.
        carry: what the next batch reads, without gradients.
        log: values to record with the loss, under the same names in every step and on every rank; the record has what
            `Task.logged` makes of their sums over batches.
        penalty: the part of `loss_sum` that is no loss of items; records leave it out.
        lr_factor: the factor of the learning rate in this step; the mean where a step has several batches.

    Example:
        >>> from anymax.training import Step
        >>> losses = torch.tensor([2.0, 1.0, 3.0])
        >>> step = Step(losses.sum(), len(losses), log={"accuracy": 0.5})
        >>> (step.loss_sum / step.count).item()
        2.0
    """

    loss_sum: Tensor
    count: int
    carry: Any = None
    log: Mapping[str, float] = field(default_factory=dict)
    penalty: float = 0.0
    lr_factor: float = 1.0


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

    Your own task is a subclass; docs/concepts/training.md writes one. The loop wraps the model for several processes
    and gives the wrapped one to `step`. All ranks call every method at the same time, so a method may talk to the other
    ranks.

    Example:
        >>> from pathlib import Path
        >>> from anymax import recipes
        >>> from anymax.training import Ranks, Task
        >>> config = recipes.find("dirichlet.linear")().toy()
        >>> task: Task = config.task.build(Path("run"), Ranks(), seed=1, announce=print)
        >>> batch = next(iter(task.batches("train")))
        >>> task.step(task.model, batch, task.new_carry()).count, task.item, task.goal
        (24, 'context', 'kl')
    """

    model: nn.Module
    """The bare model, made alike on every rank. It is moved to the device of the ranks before training."""
    goal: str
    """The metric of `evaluate` that the best checkpoint is chosen by."""
    larger_is_better: bool = False
    """Whether the goal is best when largest, as BLEU is."""
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

    def report(self, split: Split, options: Any = None, *, announce: Announce) -> Report:
        """All there is to say about the model on a split, for `anymax evaluate` and after training.

        Args:
            options: as the `evaluation_options` of the config; by default those.
            announce: called with a line that says what is being done.
        """
        self.model.eval()
        with torch.no_grad():
            return MetricsReport(split, self.evaluate(self.model, split))

    def examples(self) -> list[str]:
        """Lines to show after an evaluation, as what the model made of a few examples."""
        return []

    def sample(self) -> str | None:
        """Something that the model generates, to be shown after training."""
        return None

    def texts(self, split: Split, *, limit: int, seed: int, announce: Announce) -> list[Texts]:
        """What the model writes for examples of a split beside what they have, to be looked at; the same for the same
        arguments.

        Args:
            limit: for how many examples at most.
            seed: decides which, where the split has more, and what is sampled.
        """
        return []

    def texts_for(self, lines: Sequence[str], *, announce: Announce) -> list[Texts]:
        """What the model writes for your own lines, one example each; the same for the same lines.

        A line that does not suit the task is an error with its number, from 1.
        """
        raise ValueError(
            f"examples of your own must be for a task that writes text, got {type(self).__name__}; leave them out"
        )

    def next_commands(self) -> list[list[str]]:
        """Commands to try after training besides `evaluate` and `resume`: a verb and what follows the run."""
        return []

    def latent_view(self) -> LatentView | None:
        """What the discrete latent of the model does; None where it has none."""
        return None

    def why_unobserved(self) -> str | None:
        """Why `observe` cannot show where heads of attention look; None where it can."""
        return "models of this task have no attention"

    def observe(self, split: Split, *, limit: int, seed: int) -> Iterator[Observed]:
        """Where the heads of the model look in examples of a split, batch by batch; the same for the same arguments.

        Args:
            limit: of how many examples at most.
            seed: decides which, where the split has more.
        """
        raise ValueError(f"the model must have attention to be observed, but {self.why_unobserved()}")

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
        the other, so that a run may resume with another number of ranks.
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

    def lr_factors(self) -> dict[nn.Parameter, float]:
        """Parameters with another learning rate than the optimizer's, and its factor for each."""
        return {}

    def undecayed(self) -> set[nn.Parameter]:
        """Parameters that weight decay leaves alone."""
        return set()

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides `forward` that read parameters, as an output layer's `log_prob`: FSDP2 gathers for them."""
        return []

    def groups(self) -> list[list[nn.Module]]:
        """Modules that FSDP2 shards together, in the order they run; tied ones form one group. The rest is one more."""
        return []
