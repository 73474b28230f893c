"""Draws docs/pictures/mappings.png: entmax moving over the triangle of distributions, and four mappings as curves.

Run it with the extra `plot` installed: `python docs/pictures/simplex.py`. Shapes: S scores along a curve or a path.
"""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import anymax

PICTURE = Path(__file__).with_name("mappings.png")
# Where one entry has all the probability: entry 1 on top, 2 on the left, 3 on the right.
CORNERS = torch.tensor([[0.5, 3**0.5 / 2], [0.0, 0.0], [1.0, 0.0]])
PATHS = [[1.0, 0.1, 0.35], [0.7, 0.45, 0.0], [0.0, 1.1, 0.5], [0.3, 0.0, 0.75]]
STEEPEST = 4.0

BLUE, PURPLE, RED, GREY, INK = "#1f77b4", "#8e44ad", "#d9480f", "#868e96", "#212529"
MARKED = {1.0: ("softmax, alpha 1", BLUE), 1.5: ("entmax, alpha 1.5", PURPLE), 2.0: ("sparsemax, alpha 2", RED)}


def draw(picture: Path) -> None:
    """Draw both panels into a file."""
    mpl.rcParams.update({"font.size": 12, "text.color": INK, "axes.edgecolor": GREY, "axes.labelcolor": INK})
    figure = Figure(figsize=(12, 4.9), dpi=100, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    draw_paths(left)
    draw_curves(right)
    figure.savefig(picture, pil_kwargs={"optimize": True})


def draw_paths(axes: Axes) -> None:
    """Entmax of a few score vectors of three entries while alpha runs from 1 to STEEPEST."""
    outline = CORNERS[[0, 1, 2, 0]]
    axes.fill(*outline.T, color="#f1f3f5")
    axes.plot(*outline.T, color=GREY, linewidth=1.5)
    for scores in torch.tensor(PATHS):
        alphas = torch.linspace(1, STEEPEST, 301)[:, None]
        axes.plot(*on_triangle(anymax.entmax(scores.expand(301, 3), alphas)).T, color=INK, linewidth=1.6, zorder=2)
        for alpha, (_, colour) in MARKED.items():
            axes.plot(
                *on_triangle(anymax.entmax(scores, alpha)), "o", color=colour, markersize=8, zorder=3, clip_on=False
            )
    for entry, (x, y), side in zip((1, 2, 3), CORNERS.tolist(), ("bottom", "top", "top"), strict=True):
        nudge = 0.03 if side == "bottom" else -0.03
        axes.text(x, y + nudge, f"all on entry {entry}", ha="center", va=side)
    axes.text(0.5, -0.03, "edges: one entry is exactly 0", ha="center", va="top", color=GREY, fontsize=11)
    axes.set_title("four score vectors, alpha from 1 to 4", pad=20)
    axes.set_aspect("equal")
    axes.set_axis_off()


def draw_curves(axes: Axes) -> None:
    """The probability of the first entry while its score passes the two others."""
    first_S = torch.linspace(-3, 3, 1201)
    scores_S3 = torch.stack([first_S, torch.zeros_like(first_S), torch.zeros_like(first_S)], -1)
    for alpha, (label, colour) in MARKED.items():
        axes.plot(first_S, anymax.entmax(scores_S3, alpha)[:, 0], color=colour, linewidth=2.5, label=label)
    axes.plot(first_S, anymax.argmax(scores_S3)[:, 0], color=GREY, linewidth=1.8, linestyle=(0, (4, 2)), label="argmax")
    axes.annotate("exactly 0", (-1.9, 0.0), (-2.2, 0.25), arrowprops={"arrowstyle": "->", "color": INK})
    axes.set_title("probability of entry 1 while its score passes the other two", pad=20)
    axes.set_xlabel("score of entry 1; the others are 0")
    axes.set_xlim(-3, 3)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(color="#e9ecef")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")


def on_triangle(probs: Tensor) -> Tensor:
    return probs @ CORNERS


if __name__ == "__main__":
    draw(PICTURE)
