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
        folder: where the run lies.
        step: how many steps were taken before.
        total_steps: how many the config asks for.
        num_parameters: of the model, those that are shared counted once.
        item: what is counted, as "token".
        device: where it computes.
        world_size: on how many ranks.

    Example:
        >>> from pathlib import Path
        >>> from anymax.training import Start
        >>> start = Start(Path("run"), 0, 1000, num_parameters=4_100_000, item="token", device="cpu", world_size=1)
        >>> f"{start.num_parameters:,} parameters on {start.device}"
        '4,100,000 parameters on cpu'
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

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import Silent, train
        >>> class Losses(Silent):
        ...     def stepped(self, record):  # a TrainRecord
        ...         steps.append(record.step)
        >>> steps = []
        >>> _ = train(recipes.find("dirichlet.linear")().toy(), "run", reporter=Losses())
        >>> steps
        [1, 2, 3, 4, 5, 6]
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
        step: how many steps were taken.
        split: which was evaluated.
        metrics: the results by name.
        is_best: whether no evaluation before was as good.
        seconds: how long the run has taken, from its first step.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import Silent, train
        >>> class Evaluations(Silent):
        ...     def evaluated(self, record):  # an EvaluationRecord
        ...         print(record.split, record.step)
        >>> _ = train(recipes.find("dirichlet.linear")().toy(), "run", reporter=Evaluations())
        valid 3
        valid 6
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
        folder: where it lies.
        step: steps taken, of `total_steps`.
        total_steps: how many the config asks for.
        stopped: None where the run is finished; "signal" where it was asked to stop, "diverged" where its numbers
            became infinite. Either way it was saved and can be resumed.
        metrics: of the last evaluation; empty where there was none.
        best_step: the step that was evaluated best.
        is_early: whether its config's `stop` ended it before all steps were taken.

    Example:
        >>> from pathlib import Path
        >>> from anymax.training import Outcome
        >>> outcome = Outcome(Path("run"), 500, 1000, stopped="signal", metrics={"loss": 4.1}, best_step=400)
        >>> f"{outcome.step} of {outcome.total_steps} steps"
        '500 of 1000 steps'
    """

    folder: Path
    step: int
    total_steps: int
    stopped: Literal["signal", "diverged"] | None
    metrics: dict[str, float]
    best_step: int | None
    is_early: bool = False


class Reporter(Protocol):
    """Receives what a run does; called on the first rank alone.

    Example:
        >>> from anymax.training import EvaluationRecord, Reporter, Silent
        >>> class Printing(Silent):
        ...     def evaluated(self, record: EvaluationRecord) -> None:
        ...         print(f"step {record.step}: {record.metrics}")
        >>> reporter: Reporter = Printing()
        >>> reporter.evaluated(EvaluationRecord(500, "valid", {"loss": 4.1}, is_best=True, seconds=60.0))
        step 500: {'loss': 4.1}
    """

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
    """A reporter that prints nothing.

    Example:
        >>> from anymax.training import Silent
        >>> class Messages(Silent):
        ...     def message(self, text: str) -> None:
        ...         print(text)
        >>> Messages().message("the rest of what a run reports is ignored")
        the rest of what a run reports is ignored
    """

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
