"""What a discrete latent does in a trained model: the images it makes, the messages it sends, how sparse it became.

Shapes: rows and columns of a gallery, S x S pixels of an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anymax.display import COLOURS, Figure, clean
from anymax.display.printable import printable
from anymax.training import read_metrics
from anymax.training.latent_view import Gallery, LatentView
from anymax.training.run_folder.folder import ANALYSES
from anymax.training.task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, eq=False)
class Looked:
    """What there is to see of a run.

    Args:
        view: what the latent does after training.
        curves: metrics of the validation split by step.
        logs: what training recorded of the latent by step, as how often the loss was called for each example.
    """

    view: LatentView
    curves: dict[int, dict[str, float]]
    logs: dict[int, dict[str, float]]

    @classmethod
    def of(cls, view: LatentView, folder: Path) -> Looked:
        """With the records of the run in a folder."""
        records = read_metrics(folder)
        curves = {r["step"]: r["metrics"] for r in records if r["kind"] == "evaluation"}
        return cls(view, curves, {r["step"]: r["log"] for r in records if r["kind"] == "train"})

    @property
    def calls(self) -> dict[int, float]:
        """How often the loss was called for each example, by step of training."""
        return {step: log["calls"] for step, log in self.logs.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"view": self.view.as_dict(), "curves": self.curves, "logs": self.logs}


def takes(task: Task) -> bool:
    """Whether there is a discrete latent to look at."""
    return task.latent_view() is not None


def look(task: Task, folder: Path) -> Looked:
    """Look at a trained task on images of its test split, and at the records of its run."""
    view = task.latent_view()
    if view is None:
        raise ValueError(f"{folder} must be a run with a discrete latent, as those of `anymax recipes latent`")
    return Looked.of(view, folder)


def draw(task: Task, run: Path) -> Path:
    """Draw what the latent of a trained task does, into the folder of its run."""
    from anymax.analysis import latents as latents_report

    picture = run / ANALYSES / "latent.png"
    figure = latents_report.figure(look(task, run), run.name)
    picture.parent.mkdir(exist_ok=True)
    figure.save(picture)
    return picture


# Inches of an image of the gallery, and of a plot.
IMAGE, PLOT = 0.62, (3.6, 2.6)


def figure(looked: Looked, title: str) -> Figure:
    """Draw what there is: the gallery on top, below it how often messages are sent and every metric by step."""
    panels = _panels(looked)
    columns, gallery = min(4, len(panels)), looked.view.gallery
    rows = math.ceil(len(panels) / columns)
    top = 0.0 if gallery is None else IMAGE * len(gallery.rows) + 0.5

    def draw(canvas: Canvas) -> None:
        # The name of a run is no formula.
        canvas.suptitle(printable(title), fontsize=10, parse_math=False)
        first = int(gallery is not None)
        grid = canvas.add_gridspec(rows + first, columns, height_ratios=_heights(top, rows))
        if gallery is not None:
            _draw_gallery(canvas.add_subplot(grid[0, :]), gallery)
        for place, panel in enumerate(panels):
            row, column = divmod(place, columns)
            _draw_panel(canvas.add_subplot(grid[row + first, column]), panel)

    return Figure(f"The latent of {printable(title)}", draw, size=(PLOT[0] * columns, top + PLOT[1] * rows))


@dataclass(frozen=True)
class _Panel:
    """A small plot: numbers by step, or counts in their order."""

    title: str
    below: str
    places: list[int]
    values: list[float]
    is_count: bool = False


def _panels(looked: Looked) -> list[_Panel]:
    metrics = [name for name in next(iter(looked.curves.values()), {}) if name != "calls"]
    steps = list(looked.curves)
    curves = [
        _Panel(name.replace("_", " "), "step", steps, [point[name] for point in looked.curves.values()])
        for name in metrics
    ]
    calls = _Panel("calls for each example, in training", "step", list(looked.calls), list(looked.calls.values()))
    if looked.view.counts is None:
        return [*curves, calls]
    counts, values = [float(count) for count in looked.view.counts], looked.view.values
    sent = _Panel(f"images by {values}", f"{values}, the most frequent first", list(range(len(counts))), counts, True)
    return [*curves, calls, sent]


def _heights(top: float, rows: int) -> list[float]:
    return ([top] if top else []) + [PLOT[1]] * rows


def _draw_gallery(axes: Axes, gallery: Gallery) -> None:
    num_rows, num_columns, num_pixels = gallery.images.shape
    side = math.isqrt(num_pixels)
    # A white line on every side of an image.
    step = side + 2
    canvas = gallery.images.new_zeros(num_rows * step, num_columns * step)
    for row in range(num_rows):
        for column in range(num_columns):
            place = (slice(row * step + 1, row * step + 1 + side), slice(column * step + 1, column * step + 1 + side))
            canvas[place] = gallery.images[row, column].reshape(side, side)
    axes.imshow(canvas.numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(gallery.title, fontsize=9)
    axes.set_yticks([(row + 0.5) * step for row in range(num_rows)], gallery.rows, fontsize=8)
    names = gallery.columns or []
    axes.set_xticks([(column + 0.5) * step for column in range(len(names))], names, fontsize=8)
    axes.tick_params(length=0)
    for edge in axes.spines.values():
        edge.set_visible(False)


def _draw_panel(axes: Axes, panel: _Panel) -> None:
    if panel.is_count:
        axes.bar(panel.places, panel.values, width=1.0, color=COLOURS[1])
    else:
        # A single evaluation is a point.
        marker = "o" if len(panel.places) == 1 else None
        axes.plot(panel.places, panel.values, color=COLOURS[0], linewidth=1.4, marker=marker)
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.below, fontsize=8)
    axes.tick_params(labelsize=8)
    # Steps of long trainings have six digits.
    axes.locator_params(axis="x", nbins=4)
    clean(axes)
