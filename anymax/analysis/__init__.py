"""Questions asked of trained runs, answered with tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anymax.training.task import Task

__all__ = ["after_training"]


def after_training(task: Task, run: Path) -> list[Path]:
    """Draw the pictures that take a moment, of the analyses that take the run; none without matplotlib."""
    from anymax.analysis import latents
    from anymax.display import Figure

    return [latents.draw(task, run)] if Figure.can_be_drawn() and latents.takes(task) else []
