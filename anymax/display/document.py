"""A page as one file of HTML: its style, its scripts and its data are inside, and it needs no network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files

from anymax.display.attention_view import AttentionView
from anymax.display.chart import Chart, vega_script
from anymax.display.figure import Figure
from anymax.display.page import Bullets, Code, Heading, Notice, Page, Paragraph, Part
from anymax.display.pictures import Pictures
from anymax.display.table import Table
from anymax.display.texts import Texts

# Of every part that a browser draws, the script that does it.
SCRIPTS: dict[type, str] = {Chart: "chart.js", AttentionView: "attention.js", Texts: "texts.js", Table: "table.js"}


def document(page: Page) -> str:
    """The page as one file of HTML that needs no network. Text in it is escaped, whatever it holds.

    Example:
        >>> from anymax.display import Page, Paragraph, document
        >>> html = document(Page("A run", (Paragraph("<script> is text here"),)))
        >>> "&lt;script&gt; is text here" in html
        True
    """
    kinds = {type(part) for part in page.parts}
    scripts = ["theme.js", *(script for kind, script in SCRIPTS.items() if kind in kinds)]
    vega = f"<script>{vega_script()}</script>\n" if Chart in kinds else ""
    texts = "\n".join(_asset(name) for name in scripts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_encodable(escape(page.title))}</title>\n<style>{_asset('page.css')}</style></head>\n"
        f'<body><a class="skip" href="#content">To the content</a>{_navigation(page)}\n'
        f'<main id="content"><h1>{_encodable(escape(page.title))}</h1>\n'
        f"{_encodable(_body(page))}\n</main>\n{vega}<script>{texts}</script></body></html>\n"
    )


def _body(page: Page) -> str:
    names = iter(_names(page))
    return "\n".join(_element(part, names) for part in page.parts)


def _navigation(page: Page) -> str:
    """Links to the sections, and the switch between light and dark."""
    headings = [part.text for part in page.parts if isinstance(part, Heading)]
    links = (f'<a href="#{name}">{escape(text)}</a>' for name, text in zip(_names(page), headings, strict=True))
    switch = '<button type="button" id="theme">dark</button>'
    return _encodable(f'<nav aria-label="sections">{"".join(links)}{switch}</nav>')


def _names(page: Page) -> Iterator[str]:
    """A name for every section, for links."""
    taken: set[str] = set()
    for part in page.parts:
        if isinstance(part, Heading):
            name = plain = re.sub(r"[^a-z0-9]+", "-", part.text.lower()).strip("-") or "section"
            while name in taken:
                name = f"{plain}-{len(taken)}"
            taken.add(name)
            yield name


def _element(part: Part, names: Iterator[str]) -> str:
    match part:
        case Heading(text):
            return f'<h2 id="{next(names)}">{escape(text)}</h2>'
        case Paragraph(text, is_dim):
            return f"<p{_dim(is_dim)}>{escape(text)}</p>"
        case Notice(text):
            return f'<p class="notice" role="note">{escape(text)}</p>'
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Bullets(texts, is_dim):
            return f"<ul{_dim(is_dim)}>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
        case Table():
            return part.html()
        case Figure():
            return part.html() if Figure.can_be_drawn() else f"<p>{escape(part.title)}</p>"
        case Chart() | AttentionView() | Texts() | Pictures():
            return part.html()


def _dim(is_dim: bool) -> str:
    return ' class="note"' if is_dim else ""


def _asset(name: str) -> str:
    return (files("anymax.display") / "assets" / name).read_text(encoding="utf-8")


def _encodable(text: str) -> str:
    """The same with marks in place of what is no character, as bytes of a file's name."""
    return text.encode("utf-8", "replace").decode()
