"""Draws docs/pictures/sharing.png: a block of the encoder beside one of the decoder, and what each row shares.

Run it with the extra `plot` installed: `python docs/pictures/sharing.py`.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from anymax.models.post_editing.sharing import PRESETS

PICTURE = Path(__file__).with_name("sharing.png")
GREY, INK, PALE = "#868e96", "#212529", "#f1f3f5"
COLORS = {"random": "#ffffff", "copied": "#a5d8ff", "tied": "#1f77b4"}
# Parts of the decoder from the bottom, with where each stands in a block and what it is taken from.
PARTS = {
    "embeddings": (0.0, "embeddings"),
    "self_attention": (1.2, "self-attention"),
    "cross_attention": (2.4, "cross-attention"),
    "feed_forward": (3.6, "feed-forward"),
}
WIDTH, HEIGHT = 2.5, 0.8
SIZES = {"transformer": "290.8M", "bert": "290.8M", "cross_copied": "290.8M", "self_tied": "262.5M"}
SIZES |= {"cross_tied": "234.1M", "feed_forward_tied": "177.4M"}


def draw(picture: Path) -> None:
    """Draw both blocks and the rows into a file."""
    mpl.rcParams.update({"font.size": 11, "text.color": INK})
    figure = Figure(figsize=(12.4, 4.9), dpi=100, facecolor="white", layout="constrained")
    axes = figure.subplots()
    draw_blocks(axes)
    draw_rows(axes, left=9.2)
    axes.set_xlim(-0.2, 18.6)
    axes.set_ylim(-1.3, 5.3)
    axes.set_axis_off()
    figure.savefig(picture, pil_kwargs={"optimize": True})


def draw_blocks(axes: Axes) -> None:
    """The encoder, the decoder, and arrows from what a part may be copied from or tied to."""
    for x, name in ((0.0, "encoder: BERT"), (5.0, "decoder")):
        axes.text(x + WIDTH / 2, 4.9, name, ha="center", weight="bold")
    for part, (y, label) in PARTS.items():
        if part != "cross_attention":
            box(axes, 0.0, y, label)
        box(axes, 5.0, y, label)
    for part in ("embeddings", "self_attention", "feed_forward"):
        y = PARTS[part][0] + HEIGHT / 2
        arrow(axes, (WIDTH, y), (5.0, y))
    y_from, y_to = (PARTS[part][0] for part in ("self_attention", "cross_attention"))
    arrow(axes, (5.0 + WIDTH, y_from + HEIGHT / 2), (5.0 + WIDTH, y_to + HEIGHT / 2), bend=0.9)
    axes.text(
        1.25, -0.75, "a sentence, and its translation\nas the second segment", ha="center", va="center", color=GREY
    )
    axes.text(6.25, -0.75, "the correction so far", ha="center", va="center", color=GREY)


def draw_rows(axes: Axes, left: float) -> None:
    """A line for each preset, with a field for each part in the colour of how it is shared."""
    wide, high, first = 1.45, 0.56, 4.0
    for column, (_, label) in enumerate(PARTS.values()):
        x = left + 2.3 + wide * (column + 0.5)
        axes.text(
            x, first + 0.85, label.replace("-", "-\n").replace("embeddings", "embed-\ndings"), ha="center", fontsize=9
        )
    for row, (name, sharing) in enumerate(PRESETS.items()):
        y = first - high * 1.15 * row
        axes.text(left + 2.15, y + high / 2, name, ha="right", va="center", family="monospace", fontsize=9.5)
        for column, part in enumerate(PARTS):
            way = getattr(sharing, part)
            box(axes, left + 2.3 + wide * column, y, way, width=wide - 0.1, height=high, face=COLORS[way], size=9)
        axes.text(left + 2.4 + wide * len(PARTS), y + high / 2, SIZES[name], va="center", fontsize=9.5, color=GREY)


def box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    face: str = PALE,
    size: float = 11,
) -> None:
    shape = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.1", facecolor=face, edgecolor=GREY)
    axes.add_patch(shape)
    color = "white" if face == COLORS["tied"] else INK
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=color)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, bend: float = 0.0) -> None:
    style = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle=style, arrowstyle="-|>", mutation_scale=14, color=COLORS["tied"], lw=1.6
        )
    )


if __name__ == "__main__":
    draw(PICTURE)
