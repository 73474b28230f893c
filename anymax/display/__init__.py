"""Tables, figures, plots and pages as values: rendered to a terminal, Markdown, HTML and JSON."""

from anymax.display.attention_view import Attended, AttentionView, HeadRow
from anymax.display.chart import LOW, Axis, Chart, bars, lines
from anymax.display.document import document
from anymax.display.figure import COLOURS, Figure, clean, legend_below
from anymax.display.page import Bullets, Code, Heading, Notice, Page, Paragraph, Part
from anymax.display.pictures import Picture, Pictures
from anymax.display.table import Cell, Noted, Row, Section, Styled, Table
from anymax.display.texts import Line, Marked, Texts, marked

__all__ = [
    "COLOURS",
    "LOW",
    "Attended",
    "AttentionView",
    "Axis",
    "Bullets",
    "Cell",
    "Chart",
    "Code",
    "Figure",
    "HeadRow",
    "Heading",
    "Line",
    "Marked",
    "Noted",
    "Notice",
    "Page",
    "Paragraph",
    "Part",
    "Picture",
    "Pictures",
    "Row",
    "Section",
    "Styled",
    "Table",
    "Texts",
    "bars",
    "clean",
    "document",
    "legend_below",
    "lines",
    "marked",
]
