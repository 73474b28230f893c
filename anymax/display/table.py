"""Table: a heading for every column, and rows of text."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Noted:
    """A cell with a note beside its value, as its spread or the setting it was measured at.

    Args:
        text: the value.
        note: shown dimmed after it, in Markdown as code.

    Example:
        >>> from anymax.display import Noted, Table
        >>> print(Table(("model", "loss"), (("softmax", Noted("4.61", "± 0.02")),)).markdown())
        | model | loss |
        |---|---:|
        | softmax | 4.61 `± 0.02` |
    """

    text: str
    note: str


@dataclass(frozen=True)
class Styled:
    """A cell with a style on terminals, as "bold yellow"; elsewhere it is plain text.

    Example:
        >>> from anymax.display import Styled, Table
        >>> print(Table(("check", "result"), (("kernels", Styled("missing", "bold yellow")),)).markdown())
        | check | result |
        |---|---:|
        | kernels | missing |
    """

    text: str
    style: str


@dataclass(frozen=True)
class Section:
    """A heading among the rows, which holds until the next.

    Example:
        >>> from anymax.display import Section, Table
        >>> print(Table(("head", "alpha"), (Section("layer 0"), ("head 0", "1.31"))).markdown())
        | head | alpha |
        |---|---:|
        | **layer 0** |  |
        | head 0 | 1.31 |
    """

    name: str


Cell = str | Noted | Styled
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Rows of text below headings. The first column is aligned to the left, the others to the right.

    Args:
        columns: their headings.
        rows: a cell for every column, or the heading of a section.
        title: above the table.
        text_columns: headings of further columns to align to the left, as sentences and names of files.
        is_grid: show the rows on a terminal without headings and rules.
        source: the file that the values are from, below the table on a page.

    Example:
        >>> from anymax.display import Table
        >>> table = Table(("mapping", "BLEU"), (("softmax", "35.1"), ("entmax", "35.4")))
        >>> print(table.markdown())
        | mapping | BLEU |
        |---|---:|
        | softmax | 35.1 |
        | entmax | 35.4 |
    """

    columns: tuple[str, ...]
    rows: tuple[Row | Section, ...]
    title: str = ""
    text_columns: tuple[str, ...] = ()
    is_grid: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if not isinstance(row, Section) and len(row) != len(self.columns):
                raise ValueError(f"rows must have a cell for each of the columns {self.columns}, got {row}")

    def terminal(self) -> RenderableType:
        """The table for a console of rich."""
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable.grid(padding=(0, 2)) if self.is_grid else RichTable()
        for place, name in enumerate(self.columns):
            # What is cut off could be another name, or another number.
            justify: Literal["left", "right"] = "left" if self._is_left(place) else "right"
            # Names in a grid are short, and what follows them is text that can be wrapped.
            table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=self.is_grid and not place)
        for row in self.rows:
            if isinstance(row, Section):
                table.add_section()
                table.add_row(Text(row.name, style="bold"))
            else:
                table.add_row(*map(_styled, row))
        # A title of the table itself would be broken where the table ends.
        return Group(Text(self.title, style="bold"), table) if self.title else table

    def markdown(self) -> str:
        """The table in Markdown, under its title as a heading of the third level."""
        lines = [f"### {self.title}", ""] if self.title else []
        rules = ["---" if self._is_left(place) else "---:" for place in range(len(self.columns))]
        lines += [f"| {' | '.join(map(_escaped, self.columns))} |", f"|{'|'.join(rules)}|"]
        for row in self.rows:
            cells = [f"**{_escaped(row.name)}**"] if isinstance(row, Section) else [_in_markdown(cell) for cell in row]
            lines.append(f"| {' | '.join(cells + [''] * (len(self.columns) - len(cells)))} |")
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """The table as an element."""
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        head = "".join(
            f'<th scope="col"{self._html_side(place)}>{escape(name)}</th>' for place, name in enumerate(self.columns)
        )
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        source = f'<p class="source">from {escape(self.source)}</p>' if self.source else ""
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<figure class="table"><div class="wide">{table}</div>{source}</figure>'

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {"section": row.name}
            if isinstance(row, Section)
            else [{"text": cell.text, "note": cell.note} if isinstance(cell, Noted) else _text(cell) for cell in row]
            for row in self.rows
        ]
        return {"kind": "table", "title": self.title, "columns": list(self.columns), "rows": rows}

    def _is_left(self, place: int) -> bool:
        return not place or self.is_grid or self.columns[place] in self.text_columns

    def _html_cells(self, row: Row | Section) -> str:
        if isinstance(row, Section):
            return f'<th colspan="{len(self.columns)}">{escape(row.name)}</th>'
        cells = (f"<td{self._html_side(place)}>{_in_html(cell)}</td>" for place, cell in enumerate(row))
        return "".join(cells)

    def _html_side(self, place: int) -> str:
        return ' class="left"' if self._is_left(place) else ""


def _text(cell: str | Styled) -> str:
    return cell if isinstance(cell, str) else cell.text


def _styled(cell: Cell) -> Any:
    from rich.text import Text

    if isinstance(cell, Styled):
        return Text(cell.text, style=cell.style)
    if isinstance(cell, str):
        return Text(cell)
    return Text.assemble(cell.text, " ", (cell.note, "dim")) if cell.note else Text(cell.text)


def _in_markdown(cell: Cell) -> str:
    if not isinstance(cell, Noted):
        return _escaped(_text(cell))
    return f"{_escaped(cell.text)} `{_escaped(cell.note)}`" if cell.note else _escaped(cell.text)


def _in_html(cell: Cell) -> str:
    if not isinstance(cell, Noted):
        return escape(_text(cell))
    return f"{escape(cell.text)} <small>{escape(cell.note)}</small>" if cell.note else escape(cell.text)


def _escaped(text: str) -> str:
    """Text that cannot end its cell."""
    return text.replace("|", r"\|").replace("\n", " ")
