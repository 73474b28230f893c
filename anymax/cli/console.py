"""What verbs print on: text from files is shown as it is written, whatever it holds and whatever the terminal takes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from anymax.display.printable import printable

if TYPE_CHECKING:
    from anymax.display import Page

# Characters of an error, which may hold a word or a name of any length; its begin and its end are shown.
MOST_OF_ERROR = 2000
# Columns of a file or a pipe, which have no edge to break a line at.
WIDE = 10_000


class Console(rich.console.Console):
    """A console on which words and names of files are never markup, emoji or commands to the terminal."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    @property
    def spinner(self) -> str:
        """A spinner that the terminal can show."""
        return "dots" if self.encoding.startswith("utf") else "line"

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is printed passes here; rich's own commands to the terminal are segments of another kind."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def show_page(page: Page) -> None:
    """Print a page; in a file or a pipe, lines and tables are as wide as they need to be."""
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(page.terminal())


def publish(page: Page, *, markdown: Path | None = None, data: Path | None = None, figures: Path | None = None) -> None:
    """Print a page, and write it to files.

    Args:
        markdown: the file for the page in Markdown.
        data: the file for its data, as JSON.
        figures: the file for its figure, or for the first of several; nothing is drawn where matplotlib is missing.
    """
    show_page(page)
    name = "figure" if figures is None else figures.stem
    drawn = [] if figures is None else page.save_figures(figures.parent, name)
    if markdown is not None:
        markdown.write_text(page.markdown(name), encoding="utf-8", errors="backslashreplace")
    if data is not None:
        data.write_text(json.dumps(page.as_dict(), indent=2) + "\n")
    for path in (markdown, data, *drawn):
        if path is not None:
            Console().print(f"Wrote {path}", soft_wrap=True)


def complain(error: object) -> None:
    """Say in one line on standard error what is wrong."""
    text = re.sub(r"\s*\n\s*", " ", printable(str(error)).strip())
    if len(text) > MOST_OF_ERROR:
        half = MOST_OF_ERROR // 2
        text = f"{text[:half]} ... {text[-half:]}"
    print(f"anymax: {text}", file=sys.stderr)


def never_fail() -> None:
    """Write out characters that standard output or error cannot encode, as on terminals that take ASCII alone."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def escaping(strings: Iterable[str]) -> Iterator[None]:
    """Where strings hold control characters, write those out in what another package prints meanwhile."""
    if all(printable(text) == text for text in strings):
        yield
        return
    out, error = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            yield
    finally:
        sys.stdout.write(printable(out.getvalue()))
        sys.stderr.write(printable(error.getvalue()))
