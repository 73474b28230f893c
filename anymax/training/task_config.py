"""What a config of a task answers: how it is built, and what the command line must know before. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Self

from anymax.training.report import EvaluationOptions

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.training.ranks import Ranks
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
