"""Figure: a picture that is drawn when it is rendered, by matplotlib where that is installed."""

from __future__ import annotations

import base64
import importlib.util
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Apart from each other for colour-blind eyes too, and in print by their lightness. Okabe and Ito 2008.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000", "#b8a800")
DOTS_PER_INCH = 120


@dataclass(frozen=True)
class Figure:
    """A picture.

    Args:
        title: what it shows, for readers who do not see it.
        draw: called with an empty figure of matplotlib.
        size: width and height in inches.
        data: the numbers that it shows, as plain values for JSON.

    Example:
        >>> from anymax.display import Figure
        >>> figure = Figure("A falling line", lambda canvas: canvas.subplots().plot([3, 2, 1]), size=(3, 2))
        >>> figure.save("falling.png")
        >>> print(figure.markdown("falling.png"))
        ![A falling line](falling.png)
    """

    title: str
    draw: Callable[[Canvas], None]
    size: tuple[float, float] = (12.0, 4.8)
    data: Any = field(default=None, compare=False)

    @staticmethod
    def can_be_drawn() -> bool:
        """Whether matplotlib is installed."""
        return importlib.util.find_spec("matplotlib") is not None

    def save(self, path: str | os.PathLike[str] | io.BytesIO) -> None:
        """Draw it to a file, of the kind that its name ends with."""
        if not self.can_be_drawn():
            raise ModuleNotFoundError("pictures need matplotlib; run: pip install 'anymax[plot]'", name="matplotlib")
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=self.size, dpi=DOTS_PER_INCH, facecolor="white", layout="constrained")
        self.draw(canvas)
        canvas.savefig(path, format="png" if isinstance(path, io.BytesIO) else None)

    def html(self) -> str:
        """The picture as an element that needs no other file."""
        png = io.BytesIO()
        self.save(png)
        encoded = base64.b64encode(png.getvalue()).decode()
        return f'<img alt="{escape(self.title)}" src="data:image/png;base64,{encoded}">'

    def markdown(self, file: str) -> str:
        """A link to the picture, which lies in `file`."""
        return f"![{self.title}]({file})\n"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "figure", "title": self.title, "data": self.data}


def clean(axes: Axes) -> None:
    """Give axes of matplotlib a light grid, and no frame where nothing is measured.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from anymax.display import clean
        >>> axes = Figure().subplots()
        >>> clean(axes)
        >>> axes.spines["top"].get_visible()
        False
    """
    axes.grid(axis="y", color="#e9ecef")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


# Inches of a legend's line with the space around it, and of a letter.
LEGEND_LINE, LEGEND_LETTER = 0.6, 0.085


def legend_below(canvas: Canvas, axes: Axes, *, columns: int = 8) -> None:
    """Put one legend below all panels of a figure of matplotlib.

    Args:
        canvas: the figure.
        axes: the panel whose legend it is.
        columns: how many names stand beside each other at most; fewer where long ones would not fit.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from anymax.display import legend_below
        >>> canvas = Figure(layout="constrained")
        >>> left, right = canvas.subplots(1, 2)
        >>> _ = left.plot([1, 2], label="softmax"), right.plot([2, 1], label="softmax")
        >>> legend_below(canvas, left)
        >>> [text.get_text() for text in canvas.legends[0].get_texts()]
        ['softmax']
    """
    handles, labels = axes.get_legend_handles_labels()
    longest = LEGEND_LINE + LEGEND_LETTER * max(map(len, labels), default=0)
    fitting = max(1, int(canvas.get_figwidth() / longest))
    columns = min(len(labels), columns, fitting)
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
