"""What was measured of a model on a split, for people and for the files of a run. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from anymax.display import Figure, Table


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
