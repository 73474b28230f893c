"""Tables, figures and pages as values: rendered to a terminal, Markdown, HTML and JSON."""

from anymax.display.figure import COLOURS, Figure, clean
from anymax.display.page import Code, Heading, Page, Paragraph
from anymax.display.table import Noted, Section, Table

__all__ = ["COLOURS", "Code", "Figure", "Heading", "Noted", "Page", "Paragraph", "Section", "Table", "clean"]
