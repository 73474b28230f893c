"""Questions asked of trained runs, answered with tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anymax.training.task import Task

__all__ = ["after_training"]


def after_training(task: Task, run: Path) -> list[Path]:
    """Draw the pictures of a finished run that take no more than a moment; none without matplotlib.

    Args:
        task: with the trained model.
        run: the folder of the run, where the pictures are drawn.

    Example:
        >>> from pathlib import Path
        >>> from anymax import recipes
        >>> from anymax.analysis import after_training
        >>> from anymax.training import open_run, train
        >>> _ = train(recipes.find("latent.ssvae_quick")().toy(), "run")
        >>> [picture.suffix for picture in after_training(open_run("run").task, Path("run"))]
        ['.png']
    """
    from anymax.analysis import latents
    from anymax.display import Figure

    return [latents.draw(task, run)] if Figure.can_be_drawn() and latents.takes(task) else []
