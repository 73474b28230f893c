"""Records of a run: its start, steps, evaluations and outcome, and the reporter that receives them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

# Where a record has the loss of a model of subwords in the unit of evaluations.
LOSS_PER_WORD = "loss_per_word"


@dataclass(frozen=True)
class Start:
    """A run that starts or resumes.

    Args:
        step: how many steps were taken before.
        item: what is counted, as "token".
        device: where it computes.
        world_size: on how many ranks.
    """

    folder: Path
    step: int
    total_steps: int
    num_parameters: int
    item: str
    device: str
    world_size: int


@dataclass(frozen=True)
class TrainRecord:
    """The steps since the record before.

    Args:
        step: how many steps were taken.
        epoch: the number of passes over the data.
        loss: the mean over all items of these steps; per subword where the items are subwords. `log` has it per word
            then, as evaluations do, under `LOSS_PER_WORD`.
        lr: the learning rate of the last step.
        gradient_norm: of the last step, before it was clipped.
        items: how many items the run has seen.
        items_per_second: of these steps, without evaluations and checkpoints between them.
        seconds: how long the run has taken, from its first step.
        log: what the task logs: means over batches, unless its `logged` says otherwise.
        watch: values of the model, as what each head of attention learned.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    gradient_norm: float
    items: int
    items_per_second: float
    seconds: float
    log: dict[str, float] = field(default_factory=dict)
    watch: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationRecord:
    """How well the model does after a step.

    Args:
        is_best: whether no evaluation before was as good.
        seconds: how long the run has taken, from its first step.
    """

    step: int
    split: str
    metrics: dict[str, float]
    is_best: bool
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        step: steps taken, of `total_steps`.
        stopped: None where the run is finished; "signal" where it was asked to stop, "diverged" where its numbers
            became infinite. Either way it was saved and can be resumed.
        metrics: of the last evaluation; empty where there was none.
        best_step: the step that was evaluated best.
        is_early: whether its config's `stop` ended it before all steps were taken.
    """

    folder: Path
    step: int
    total_steps: int
    stopped: Literal["signal", "diverged"] | None
    metrics: dict[str, float]
    best_step: int | None
    is_early: bool = False


class Reporter(Protocol):
    """Receives what a run does; called on the first rank alone."""

    def started(self, start: Start) -> None:
        """Training begins."""

    def advanced(self, step: int, loss: float) -> None:
        """A step was taken."""

    def stepped(self, record: TrainRecord) -> None:
        """A record of steps was written."""

    def evaluated(self, record: EvaluationRecord) -> None:
        """The model was evaluated."""

    def saved(self, path: Path) -> None:
        """A checkpoint was written."""

    def message(self, text: str) -> None:
        """Something else that the user should know."""


class Silent:
    """A reporter that prints nothing."""

    def started(self, start: Start) -> None:
        """Ignore it."""

    def advanced(self, step: int, loss: float) -> None:
        """Ignore it."""

    def stepped(self, record: TrainRecord) -> None:
        """Ignore it."""

    def evaluated(self, record: EvaluationRecord) -> None:
        """Ignore it."""

    def saved(self, path: Path) -> None:
        """Ignore it."""

    def message(self, text: str) -> None:
        """Ignore it."""
