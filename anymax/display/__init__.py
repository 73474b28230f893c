"""Tables, figures and pages as values: rendered to a terminal, Markdown, HTML and JSON."""

from anymax.display.figure import COLOURS, Figure, clean, legend_below
from anymax.display.page import Bullets, Code, Heading, Page, Paragraph, Part
from anymax.display.table import Cell, Noted, Row, Section, Styled, Table

__all__ = [
    "COLOURS",
    "Bullets",
    "Cell",
    "Code",
    "Figure",
    "Heading",
    "Noted",
    "Page",
    "Paragraph",
    "Part",
    "Row",
    "Section",
    "Styled",
    "Table",
    "clean",
    "legend_below",
]
