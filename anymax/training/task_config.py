"""What the config of a task answers, and the report of an evaluation. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from anymax.display import Figure, Table

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.task import Task


class TaskConfig(ABC):
    """The config of a task: a frozen dataclass of numbers, strings, paths, tuples and other such dataclasses."""

    @abstractmethod
    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> Task:
        """The task of the run in `folder`, which may hold what an earlier call of `Task.save` left.

        Args:
            seed: decides everything that the task draws.
            announce: called with a line that says what is being done.
        """

    @abstractmethod
    def toy(self) -> Self:
        """The same at a size for tests, on data that needs nothing."""

    @property
    def is_likelihood(self) -> bool:
        """Whether the loss is a negative log-probability, so that its exponential is a perplexity."""
        return False

    @property
    def evaluation_options(self) -> EvaluationOptions:
        """The further options of `anymax evaluate`, with their defaults."""
        return EvaluationOptions()

    def num_train_words(self, announce: Announce) -> int | None:
        """How many words the training text has; None where there is no text."""
        return None

    def run_name(self, recipe: str) -> str:
        """The name of a run whose folder was not given."""
        return recipe


class Report(ABC):
    """A model measured on a split."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; with `metrics` by name, runs can be compared by `anymax compare`."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The result in a few lines."""

    def tables(self) -> list[Table]:
        """Details, which `anymax evaluate` shows too."""
        return []

    def figures(self, run: str) -> dict[str, Figure]:
        """Pictures by their names, which are drawn to the folder of the evaluation.

        Args:
            run: the name of the run.
        """
        return {}


@dataclass(frozen=True)
class MetricsReport(Report):
    """The metrics of a task that says no more than those."""

    split: str
    metrics: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return {"split": self.split, "metrics": self.metrics}

    def lines(self) -> list[str]:
        return [f"On the {self.split} split:", *(f"{name} {short(value)}" for name, value in self.metrics.items())]


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of `anymax evaluate` that only runs of one task have; none, if a task does not say otherwise."""

    # Options that add to what is measured and change none of it.
    additions: ClassVar[tuple[str, ...]] = ()

    def changed(self) -> list[str]:
        """Names and values of the options that change what is measured, for the name of a file."""
        return [
            f"{name.replace('_', '-')}-{value}"
            for name, value in _changed(self, type(self)())
            if name not in self.additions
        ]


def _changed(given: Any, default: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(given):
        value, usual = getattr(given, field.name), getattr(default, field.name)
        if is_dataclass(value):
            yield from _changed(value, usual)
        elif value != usual:
            yield field.name, value


def short(value: float) -> str:
    """Four digits, and all of what stands before the point."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
