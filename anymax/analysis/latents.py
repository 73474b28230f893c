"""What a discrete latent does in a trained model: the images it makes, the messages it sends, how sparse it became.

Shapes: rows and columns of a gallery, S x S pixels of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anymax.training import read_metrics
from anymax.training.run_folder.folder import ANALYSES
from anymax.training.task import Gallery, Task


@dataclass(frozen=True, eq=False)
class Looked:
    """What there is to see of a run.

    Args:
        gallery: None where the images are features that nobody can look at.
        counts: of a game, how often each message is the likeliest, the most frequent first; else None.
        curves: metrics of the validation split by step.
        calls: how often the loss was called for each example, by step of training.
    """

    gallery: Gallery | None
    counts: list[int] | None
    curves: dict[int, dict[str, float]]
    calls: dict[int, float]


def takes(task: Task) -> bool:
    """Whether there is a discrete latent to look at."""
    return task.latent_view() is not None


def look(task: Task, folder: Path) -> Looked:
    """Look at a trained task on images of its test split, and at the records of its run."""
    view, records = task.latent_view(), read_metrics(folder)
    if view is None:
        raise ValueError(f"{folder} must be a run with a discrete latent, as those of `anymax recipes latent`")
    curves = {r["step"]: r["metrics"] for r in records if r["kind"] == "evaluation"}
    calls = {r["step"]: r["log"]["calls"] for r in records if r["kind"] == "train"}
    return Looked(view.gallery, view.counts, curves, calls)


def draw(task: Task, run: Path) -> Path:
    """Draw what the latent of a trained task does, into the folder of its run."""
    from anymax.analysis import latents_report

    picture = run / ANALYSES / "latent.png"
    figure = latents_report.figure(look(task, run), run.name)
    picture.parent.mkdir(exist_ok=True)
    figure.save(picture)
    return picture
