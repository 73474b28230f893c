"""Page: headings, paragraphs, tables, figures and plots in the order they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anymax.display.attention_view import AttentionView
from anymax.display.chart import Chart
from anymax.display.figure import Figure
from anymax.display.pictures import Pictures
from anymax.display.table import Table
from anymax.display.texts import Texts

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Heading:
    """The title of what follows, of the second level.

    Example:
        >>> from anymax.display import Heading, Page, Paragraph
        >>> Page("A run", (Heading("Result"), Paragraph("It learned."))).markdown().splitlines()
        ['# A run', '', '## Result', '', 'It learned.']
    """

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A sentence or several; dim ones are small print on a terminal.

    Example:
        >>> from anymax.display import Page, Paragraph
        >>> Page("A run", (Paragraph("It took 40 seconds."),)).markdown().splitlines()
        ['# A run', '', 'It took 40 seconds.']
    """

    text: str
    is_dim: bool = False


@dataclass(frozen=True)
class Notice:
    """A warning that a reader should see before the rest.

    Example:
        >>> from anymax.display import Notice, Page
        >>> Page("A run", (Notice("The loss became infinite at step 40."),)).markdown().splitlines()
        ['# A run', '', '**The loss became infinite at step 40.**']
    """

    text: str


@dataclass(frozen=True)
class Code:
    """A command or an output, to be shown as it is.

    Example:
        >>> from anymax.display import Code, Page
        >>> Page("How to resume", (Code("anymax resume runs/demo"),)).markdown().splitlines()
        ['# How to resume', '', '```', 'anymax resume runs/demo', '```']
    """

    text: str


@dataclass(frozen=True)
class Bullets:
    """Facts or remarks, one below the other; dim ones are small print on a terminal.

    Example:
        >>> from anymax.display import Bullets, Page
        >>> Page("Facts", (Bullets(("2 layers", "4 heads")),)).markdown().splitlines()
        ['# Facts', '', '- 2 layers', '- 4 heads']
    """

    texts: tuple[str, ...]
    is_dim: bool = False


# What a browser draws, and of which other renderings have the title.
Drawn = Chart | AttentionView | Texts | Pictures
Part = Heading | Paragraph | Notice | Code | Bullets | Table | Figure | Drawn


@dataclass(frozen=True)
class Page:
    """Parts below a title.

    Args:
        title: of the whole.
        parts: in the order they are read.
        data: what the page was made of, as plain values for JSON.

    Example:
        >>> from anymax.display import Page, Paragraph, Table
        >>> page = Page("A run", (Paragraph("Two rows."), Table(("step", "loss"), (("1", "3.2"), ("2", "2.9")))))
        >>> print(page.markdown())
        # A run
        <BLANKLINE>
        Two rows.
        <BLANKLINE>
        | step | loss |
        |---|---:|
        | 1 | 3.2 |
        | 2 | 2.9 |
    """

    title: str
    parts: tuple[Part, ...]
    data: Any = field(default=None, compare=False)

    @property
    def figures(self) -> list[Figure]:
        return [part for part in self.parts if isinstance(part, Figure)]

    def terminal(self) -> RenderableType:
        """Everything but the figures, for a console of rich."""
        from rich.console import Group

        shown: list[RenderableType] = []
        for part in self.parts:
            shown += _on_terminal(part)
        return Group(*shown)

    def markdown(self, name: str = "figure") -> str:
        """The page in Markdown, with links to the figures that `save_figures` writes under the same name."""
        files = iter(self._files(name))
        texts = [f"# {self.title}\n", *(_in_markdown(part, files) for part in self.parts)]
        return "\n".join(texts)

    def save_figures(self, folder: Path, name: str = "figure") -> list[Path]:
        """Draw the figures as `name.png`, `name-2.png`, ... into a folder; nothing where matplotlib is missing."""
        if not Figure.can_be_drawn():
            return []
        paths = [folder / file for file in self._files(name)]
        for figure, path in zip(self.figures, paths, strict=True):
            figure.save(path)
        return paths

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the data of the page, or else its parts as they are shown."""
        if self.data is not None:
            return dict(self.data)
        return {"title": self.title, "parts": [_as_dict(part) for part in self.parts]}

    def _files(self, name: str) -> list[str]:
        return [f"{name}.png" if number == 1 else f"{name}-{number}.png" for number in range(1, len(self.figures) + 1)]


def _on_terminal(part: Part) -> list[RenderableType]:
    from rich.text import Text

    match part:
        case Heading(text):
            return [Text(text, style="bold")]
        case Paragraph(text, is_dim):
            return [Text(text, style="dim" if is_dim else "")]
        case Notice(text):
            return [Text(text, style="yellow")]
        case Code(text):
            return [Text(text), ""]
        case Bullets(texts, is_dim):
            return [*(Text(f"- {text}", style="dim" if is_dim else "") for text in texts), ""]
        case Table():
            return [part.terminal(), ""]
        case Figure() | Chart() | AttentionView() | Texts() | Pictures():
            return []


def _in_markdown(part: Part, files: Iterator[str]) -> str:
    match part:
        case Heading(text):
            return f"## {text}\n"
        case Paragraph(text):
            return f"{text}\n"
        case Notice(text):
            return f"**{text}**\n"
        case Code(text):
            return f"```\n{text}\n```\n"
        case Bullets(texts):
            return "".join(f"- {text}\n" for text in texts)
        case Table():
            return part.markdown()
        case Figure():
            return part.markdown(next(files)) if Figure.can_be_drawn() else f"{part.title}\n"
        case Chart() | AttentionView() | Texts() | Pictures():
            return f"{part.title}\n"


def _as_dict(part: Part) -> dict[str, Any]:
    match part:
        case Heading(text) | Paragraph(text) | Code(text) | Notice(text):
            return {"kind": type(part).__name__.lower(), "text": text}
        case Bullets(texts):
            return {"kind": "bullets", "texts": list(texts)}
        case Table() | Figure() | Chart() | AttentionView() | Texts() | Pictures():
            return part.as_dict()
