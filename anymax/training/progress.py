"""How far a run is: what a checkpoint keeps besides tensors and the place in the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
        goals: the metric that should fall, of every evaluation; where the optimizer averages, of those since it does.
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
    def from_plain(cls, values: Mapping[str, Any]) -> Progress:
        found = {name: Evaluated(**values[name]) if values[name] else None for name in ("evaluated", "best")}
        return cls(**{**values, "since_record": Totals(**values["since_record"]), **found})


@dataclass(frozen=True)
class Evaluated:
    """The metrics of the model after a step."""

    step: int
    metrics: dict[str, float]
