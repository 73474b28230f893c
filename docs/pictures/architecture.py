"""Draws docs/pictures/architecture.png: the folders as floors of a house, and a batch on its way through them.

Run it with the extra `plot` installed: `python docs/pictures/architecture.py`.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

PICTURE = Path(__file__).with_name("architecture.png")
BLUE, RED, GREY, INK, PALE = "#1f77b4", "#d9480f", "#868e96", "#212529", "#f1f3f5"
WIDTH, STEP, HEIGHT = 9.6, 1.2, 1.06
FORWARD, BACKWARD = 10.15, 13.95


class Floor(NamedTuple):
    """What a floor is for, its folders in import order, and what happens to a batch on it."""

    name: str
    folders: list[str]
    forward: str = ""
    backward: str = ""


FLOORS = [
    Floor("uses", ["analysis", "recipes", "bench", "compat", "hf", "cli"], "anymax train RECIPE\nstarts the loop"),
    Floor(
        "runs",
        ["data", "decoding", "evaluation", "training"],
        "text file to ids,\nids to a batch",
        "optimizer step,\ncheckpoint",
    ),
    Floor("models", ["models"], "forward of the model", "gradients of\nall parameters"),
    Floor("layers", ["vocabulary", "attention", "latent"], "ids to vectors, attention,\nhidden states to scores"),
    Floor(
        "losses and mappings", ["transforms", "mappings", "losses", "regularizers", "structured"], "scores to a loss"
    ),
    Floor("foundations", ["display", "distributed", "kernels"], "rows of scores, in C++ or torch"),
    Floor("shared files", ["checks.py", "files.py", "lazy.py", "plain.py", "version.py"]),
]
# Those that a batch of `anymax train sotu.adaptive_tied` passes.
PASSED = {"recipes", "cli", "data", "training", "models", "vocabulary", "attention", "losses", "kernels", "distributed"}


def draw(picture: Path) -> None:
    """Draw the house into a file."""
    mpl.rcParams.update({"font.size": 12, "text.color": INK})
    figure = Figure(figsize=(12.6, 7.6), dpi=100, facecolor="white", layout="constrained")
    axes = figure.subplots()
    for number, floor in enumerate(FLOORS):
        draw_floor(axes, floor, middle(number))
    draw_way(axes)
    axes.set_xlim(-0.1, 14.5)
    axes.set_ylim(-0.6, len(FLOORS) * STEP - 0.35)
    axes.set_aspect("equal")
    axes.set_axis_off()
    figure.savefig(picture, pil_kwargs={"optimize": True})


def draw_floor(axes: Axes, floor: Floor, y: float) -> None:
    """A floor with its name and its folders, those that a batch passes in colour."""
    rounded(axes, 0, y - HEIGHT / 2, WIDTH, HEIGHT, face=PALE, edge=PALE)
    axes.text(0.15, y + HEIGHT / 2 - 0.2, floor.name, fontsize=10.5, color=GREY, va="center")
    gap = 0.12
    width = (WIDTH - 0.3 - gap * (len(floor.folders) - 1)) / len(floor.folders)
    for place, folder in enumerate(floor.folders):
        x, is_passed = 0.15 + place * (width + gap), folder in PASSED
        rounded(axes, x, y - 0.42, width, 0.54, face=BLUE if is_passed else "white", edge=BLUE if is_passed else GREY)
        axes.text(
            x + width / 2,
            y - 0.16,
            folder,
            ha="center",
            va="center",
            color="white" if is_passed else INK,
            family="monospace",
        )


def draw_way(axes: Axes) -> None:
    """Down through the floors with the scores, and up again with the gradients."""
    top, runs, bottom = middle(0), middle(1), middle(5)
    arrow(axes, (FORWARD, top + 0.3), (FORWARD, bottom - 0.25), BLUE)
    arrow(axes, (BACKWARD, bottom - 0.25), (BACKWARD, runs + 0.3), RED)
    axes.plot([FORWARD, BACKWARD], [bottom - 0.25] * 2, color=GREY, linewidth=1.5, linestyle=(0, (2, 2)))
    axes.text(FORWARD - 0.1, top + 0.62, "one training step", fontsize=12.5, weight="bold", va="center")
    axes.text(
        FORWARD - 0.1, bottom - STEP, "blue: what a batch passes\nimports go down, never up", color=GREY, va="center"
    )
    for number, floor in enumerate(FLOORS):
        axes.text(FORWARD + 0.2, middle(number), floor.forward, va="center", fontsize=10.5)
        axes.text(BACKWARD - 0.2, middle(number), floor.backward, va="center", ha="right", fontsize=10.5)


def middle(number: int) -> float:
    return (len(FLOORS) - 1 - number) * STEP


def rounded(axes: Axes, x: float, y: float, width: float, height: float, *, face: str, edge: str) -> None:
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=1.2))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=22, linewidth=3, color=colour))


if __name__ == "__main__":
    draw(PICTURE)
