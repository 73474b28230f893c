"""Tables, figures and pages: the same content on a terminal, in Markdown, HTML and JSON, whatever the text holds."""

import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from anymax.display import Bullets, Code, Figure, Heading, Noted, Page, Paragraph, Section, Table, document

TABLE = Table(
    ("", "time", "[red]"),
    (Section("ours"), ("entmax", Noted("1.25", "k = 3"), "2 MB"), ("a|b <i>", "[bold]3[/bold]", Noted("", "c|d"))),
    "Ratios [dim]",
)


def drawn(canvas) -> None:
    canvas.subplots().plot([1, 2], [3, 4])


def on_terminal(renderable) -> str:
    printed = io.StringIO()
    Console(file=printed, width=80).print(renderable)
    return printed.getvalue()


class Texts(HTMLParser):
    """The text of every element, and the elements that are open at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.texts.append(data.strip())


def test_a_table_shows_every_cell_as_it_is_written():
    shown = on_terminal(TABLE.terminal())
    for text in ("Ratios [dim]", "time", "[red]", "ours", "entmax", "1.25 k = 3", "a|b <i>", "[bold]3[/bold]"):
        assert text in shown
    assert TABLE.markdown().splitlines() == [
        "### Ratios [dim]",
        "",
        "|  | time | [red] |",
        "|---|---:|---:|",
        "| **ours** |  |  |",
        "| entmax | 1.25 `k = 3` | 2 MB |",
        r"| a\|b <i> | [bold]3[/bold] |  `c\|d` |",
    ]
    parsed = Texts(TABLE.html())
    assert parsed.open == [] and {"a|b <i>", "ours", "k = 3", "Ratios [dim]"} <= {*parsed.texts}
    assert json.loads(json.dumps(TABLE.as_dict()))["rows"][1] == ["entmax", {"text": "1.25", "note": "k = 3"}, "2 MB"]


def test_on_a_narrow_terminal_a_number_is_broken_between_its_words_and_never_cut_off():
    table = Table(("", "a", "b"), (("a name of several words", Noted("1.25", "1.20-1.30, k=32"), "123456789"),))
    printed = io.StringIO()
    Console(file=printed, width=40).print(table.terminal())
    lines = printed.getvalue().splitlines()
    assert {*table.rows[0][0].split(), "1.25", "1.20-1.30,", "k=32", "123456789"} <= {*" ".join(lines).split()}
    assert max(map(len, lines)) <= 40


def test_rows_have_a_cell_for_every_column():
    with pytest.raises(ValueError, match=r"rows must have a cell for each of the columns \('a', 'b'\), got \('1',\)"):
        Table(("a", "b"), (("1",),))


def test_a_page_has_its_parts_in_order_in_every_form(tmp_path: Path):
    pytest.importorskip("matplotlib")
    figures = (Figure("Two lines", drawn), Figure("Again", drawn))
    bullets = Bullets(("one & two", "three"))
    page = Page("A & B", (Heading("First"), Paragraph("Small print.", True), Code("$ a < b"), bullets, TABLE, *figures))
    shown = on_terminal(page.terminal())
    assert (
        shown.index("First")
        < shown.index("Small print.")
        < shown.index("$ a < b")
        < shown.index("- three")
        < shown.index("Ratios")
    )
    text = page.markdown("picture")
    assert (
        text.startswith("# A & B\n") and "## First\n" in text and "```\n$ a < b\n```\n\n- one & two\n- three\n" in text
    )
    assert "![Two lines](picture.png)" in text and "![Again](picture-2.png)" in text
    assert page.save_figures(tmp_path, "picture") == [tmp_path / "picture.png", tmp_path / "picture-2.png"]
    assert (tmp_path / "picture-2.png").read_bytes().startswith(b"\x89PNG")
    html = document(page)
    parsed = Texts(html)
    assert parsed.open == [] and {"A & B", "First", "$ a < b", "one & two"} <= {*parsed.texts}
    assert html.count('src="data:image/png;base64,') == 2
    kinds = [part["kind"] for part in json.loads(json.dumps(page.as_dict()))["parts"]]
    assert kinds == ["heading", "paragraph", "code", "bullets", "table", "figure", "figure"]


def test_a_page_with_data_gives_that_as_json():
    assert Page("A", (TABLE,), {"time": 1.25}).as_dict() == {"time": 1.25}


def test_a_figure_is_saved_as_its_name_says(tmp_path: Path):
    pytest.importorskip("matplotlib")
    Figure("Lines", drawn).save(tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_without_matplotlib_nothing_is_drawn_and_saving_says_what_to_install(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    figure = Figure("Lines", drawn)
    page = Page("A", (figure,))
    assert (
        page.save_figures(tmp_path) == [] and "<p>Lines</p>" in document(page) and page.markdown() == "# A\n\nLines\n"
    )
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anymax\[plot\]'"):
        figure.save(tmp_path / "a.png")
