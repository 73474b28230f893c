"""Texts: what a model wrote beside what it was given, line by line, with what differs marked."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Marked:
    """A text in parts, of which some are marked.

    Args:
        parts: texts, and whether each is marked; one after the other they are the whole.

    Example:
        >>> from anymax.display import Marked
        >>> text = Marked((("the", False), (" ", False), ("dog", True)))
        >>> text.text, text.html()
        ('the dog', 'the <mark>dog</mark>')
    """

    parts: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        return "".join(part for part, _ in self.parts)

    def html(self) -> str:
        return "".join(f"<mark>{escape(part)}</mark>" if is_marked else escape(part) for part, is_marked in self.parts)


def marked(text: str, beside: str) -> Marked:
    """A text whose words are marked where another text, word by word, has others; the spaces between them are kept.

    Example:
        >>> from anymax.display import marked
        >>> marked("the cat barks", beside="the dog barks").html()
        'the <mark>cat</mark> barks'
    """
    words, others = text.split(" "), beside.split(" ")
    parts: list[tuple[str, bool]] = []
    for what, begin, end, _, _ in difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        part = " ".join(words[begin:end])
        if begin < end:
            parts += [(" ", False)] if parts else []
            parts.append((part, what != "equal"))
    return Marked(tuple(parts))


@dataclass(frozen=True)
class Line:
    """The texts of one example.

    Args:
        texts: one for each heading.
        score: how well it went; None where nothing is measured of it.

    Example:
        >>> from anymax.display import Line, marked
        >>> Line(("der Hund", marked("a dog", beside="the dog")), score=42.0).score
        42.0
    """

    texts: tuple[str | Marked, ...]
    score: float | None = None


@dataclass(frozen=True)
class Texts:
    """Examples with their texts, to be searched and sorted.

    Args:
        title: above the examples.
        headings: of the texts.
        lines: the examples.
        score: what the scores of lines are; "" where they have none.
        source: what the texts were made from.
        note: what a reader needs to understand them.

    Example:
        >>> from anymax.display import Line, Texts, marked
        >>> line = Line(("the dog barks", marked("the cat barks", beside="the dog barks")), score=61.0)
        >>> texts = Texts("Translations", ("reference", "translation"), (line,), score="chrF")
        >>> "<mark>cat</mark>" in texts.html()
        True
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    score: str = ""
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line.texts) != len(self.headings):
                raise ValueError(f"lines must have a text for each of {self.headings}, got {line.texts}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        lines = [{"texts": [_plain(text) for text in line.texts], "score": line.score} for line in self.lines]
        return {"kind": "texts", "title": self.title, "headings": list(self.headings), "lines": lines}

    def html(self) -> str:
        """An element that shows all; the script of a page lets it be searched and sorted."""
        rows = "".join(self._row(number, line) for number, line in enumerate(self.lines))
        by_score = f'<option value="down">{escape(self.score)}, largest first</option>' if self.score else ""
        by_score += f'<option value="up">{escape(self.score)}, smallest first</option>' if self.score else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        source = f'<p class="source">from {escape(self.source)}</p>' if self.source else ""
        tools = (
            '<div class="tools"><label>search <input type="search"></label> '
            f'<label>order <select><option value="given">as drawn</option>{by_score}</select></label> '
            '<span class="shown" role="status"></span></div>'
        )
        return (
            f'<figure class="texts"><figcaption>{escape(self.title)}</figcaption>{tools}'
            f'<div class="lines">{rows}</div>{note}{source}</figure>'
        )

    def _row(self, number: int, line: Line) -> str:
        given = "" if line.score is None else f' data-score="{line.score:.6g}"'
        shown = "" if line.score is None else f'<span class="score">{escape(self.score)} {line.score:.1f}</span>'
        texts = "".join(
            f"<dt>{escape(heading)}</dt><dd>{text.html() if isinstance(text, Marked) else escape(text)}</dd>"
            for heading, text in zip(self.headings, line.texts, strict=True)
        )
        return f'<dl data-number="{number}"{given}>{shown}{texts}</dl>'


def _plain(text: str | Marked) -> str:
    return text.text if isinstance(text, Marked) else text
