"""How far a run is: what a checkpoint keeps besides tensors and the place in the data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from anymax.checks import check_counts, check_not_negative, given
from anymax.plain import from_plain


@dataclass
class Totals:
    """Sums over the batches of one step or of several, over all ranks.

    Args:
        batches: how many batches, each rank's counted.
        seconds: how long they took.
        log: sums of what the task logs.
    """

    loss_sum: float = 0.0
    count: int = 0
    batches: int = 0
    seconds: float = 0.0
    log: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """The mean over items; undefined where there are none."""
        return self.loss_sum / self.count if self.count else math.nan

    def add(self, other: Totals) -> None:
        """Count the batches of other steps too."""
        self.loss_sum += other.loss_sum
        self.count += other.count
        self.batches += other.batches
        self.seconds += other.seconds
        self.log = {name: self.log.get(name, 0.0) + value for name, value in other.log.items()}


@dataclass
class Progress:
    """What a run has done so far, all sittings together.

    Args:
        step: steps taken.
        items: items seen.
        seconds: how long it took.
        training_seconds: how long the steps took, without evaluations and checkpoints.
        since_record: the steps since the last record.
        evaluated: the step of the last evaluation, and what it gave.
        best: the same of the best one.
        goals: the goal of every evaluation, negated where larger is better; where the optimizer averages, of those
            since it does.
        averaging_since: after how many steps the optimizer began to average; None where it did not.
    """

    step: int = 0
    items: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    since_record: Totals = field(default_factory=Totals)
    evaluated: Evaluated | None = None
    best: Evaluated | None = None
    goals: list[float] = field(default_factory=list)
    averaging_since: int | None = None

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Any, *, step: int, goal: str) -> Progress:
        """The progress that `as_plain` gave these values for, which may come from anybody.

        Args:
            step: of the checkpoint they belong to.
            goal: the metric that every evaluation has.
        """
        progress = from_plain(cls, values, place="progress")
        progress._check(step, goal)
        return progress

    def _check(self, step: int, goal: str) -> None:
        if self.step != step:
            raise ValueError(f"progress.step must be that of the checkpoint, {step}, got {self.step}")
        since = self.since_record
        check_counts(0, items=self.items, count=since.count, batches=since.batches)
        check_counts(0, **given(averaging_since=self.averaging_since))
        check_not_negative(seconds=self.seconds, training_seconds=self.training_seconds, since_record=since.seconds)
        if not all(map(math.isfinite, (since.loss_sum, *since.log.values()))):
            raise ValueError("progress.since_record must be finite")
        if self.averaging_since is not None and self.averaging_since > step:
            raise ValueError(f"progress.averaging_since must be at most {step}, got {self.averaging_since}")
        for name, evaluated in (("evaluated", self.evaluated), ("best", self.best)):
            if evaluated is not None and not (0 <= evaluated.step <= step and goal in evaluated.metrics):
                raise ValueError(f"progress.{name} must have the {goal} of a step up to {step}, got {evaluated}")
        if self.best is not None and math.isnan(self.best.metrics[goal]):
            raise ValueError(f"progress.best must have a {goal} that is a number, got nan")


@dataclass(frozen=True)
class Evaluated:
    """The metrics of the model after a step."""

    step: int
    metrics: dict[str, float]
