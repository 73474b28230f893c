"""A page in a browser: plots draw, heads open, tables sort and are copied, texts are searched, dark has contrast."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from anymax.display import (
    Attended,
    AttentionView,
    Axis,
    Chart,
    Heading,
    HeadRow,
    Line,
    Notice,
    Page,
    Section,
    Table,
    Texts,
    document,
    lines,
    marked,
)

pytest.importorskip("vl_convert")

HOSTILE = "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
TABLE = Table(
    ("name", "loss, nats", "share"),
    (
        Section("ours"),
        ("b", "10.5", "3.1%"),
        ('a, "quoted"', "2", "20%"),
        (HOSTILE, "", "1,000%"),
        Section("others"),
        ("c", "1", ""),
    ),
    "Results",
    source="summary.json",
)


def page() -> Page:
    steps = list(range(1, 51))
    chart = Chart(
        "Loss",
        {
            "steps": [*steps, *steps],
            "hours": [s / 10 for s in (*steps, *steps)],
            "value": [9 / s for s in (*steps, *steps)],
            "run": ["softmax"] * 50 + [HOSTILE] * 50,
        },
        lines(Axis("steps", "steps"), Axis("value", "loss"), Axis("run", "", kind="nominal")),
        "metrics.jsonl",
        x_choices=(("steps", "steps"), ("hours", "hours")),
    )
    # Head 1 of layer 1 looks at the first word alone, the others at all.
    words = ("who", HOSTILE, "?")
    even, first = [85] * 9, [255, 0, 0] * 3
    weights = bytes([*even, *even, *even, *first])
    example = {"encoder": Attended(words, words, weights)}
    rows = tuple(
        HeadRow(
            "encoder", layer, number, {"alpha": 1 + 0.2 * layer + 0.1 * number, "density": 0.5}, (1.5, 1.2), (0,), role
        )
        for layer in range(2)
        for number, role in enumerate(("", f"position -1 {HOSTILE}"))
    )
    measures = {"alpha": "what it learned", "density": "weights above zero"}
    view = AttentionView(
        "Heads", {"encoder": "self-attention"}, measures, {"density": (0, 1)}, rows, (10, 20), (example,)
    )
    texts = Texts(
        "Translations",
        ("source", "translation"),
        tuple(Line((f"line {i} {HOSTILE if i == 2 else ''}", marked("a b", "a c")), 10.0 * i) for i in range(4)),
        "chrF",
    )
    parts = (Notice("Worse than the bigram."), TABLE, Heading("Learning"), chart, Heading("Attention"), view, texts)
    return Page(f"A run {HOSTILE}", parts)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(document(page()), encoding="utf-8")
    return file


@pytest.fixture
def opened(browser: Any, file: Path) -> Any:
    """The page, and what the console had to say at the end."""
    context = browser.new_context(color_scheme="light", accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    # Nothing may be asked of a network.
    tab.route(re.compile("^https?://"), lambda route: said.append(route.request.url) or route.abort())
    tab.goto(file.as_uri())
    yield tab
    assert tab.evaluate("window.broken") is None
    assert said == []
    context.close()


def test_plots_draw_and_change_their_axes(opened: Any) -> None:
    chart = opened.locator("figure.chart")
    opened.locator("figure.chart[data-drawn] canvas").wait_for()
    assert opened.evaluate("document.querySelector('figure.chart canvas').width") > 300
    hours = chart.get_by_role("button", name="by hours")
    hours.click()
    assert hours.get_attribute("aria-pressed") == "true"
    chart.get_by_role("button", name="logarithmic axis").click()
    opened.locator("figure.chart[data-drawn] canvas").wait_for()


def test_a_plot_is_saved_as_png_and_svg(opened: Any) -> None:
    for kind, begin in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with opened.expect_download() as download:
            opened.locator("figure.chart").get_by_role("button", name=f"save as {kind}").click()
        path = Path(download.value.path())
        assert path.read_bytes().startswith(begin) and path.stat().st_size > 2_000
        assert download.value.suggested_filename == f"Loss.{kind.lower()}"


def test_a_head_opens_by_click_and_by_keyboard_with_zeros_left_white(opened: Any) -> None:
    head, cells = opened.locator(".head h3"), opened.locator(".attention .cell")
    assert head.inner_text() == "self-attention, layer 0, head 0" and cells.count() == 4
    # A rectangle for the ground, one for the frame, and one for each weight above zero.
    assert opened.locator(".sentence rect").count() == 2 + 9
    cells.nth(2).click()
    assert head.inner_text() == "self-attention, layer 1, head 0"
    opened.keyboard.press("ArrowRight")
    assert head.inner_text() == f"self-attention, layer 1, head 1: position -1 {HOSTILE}"
    assert opened.locator(".sentence rect").count() == 2 + 3
    titles = opened.locator(".sentence rect title").all_text_contents()
    assert titles == [f"{word} → who: 1.000" for word in ("who", HOSTILE, "?")]
    opened.keyboard.press("ArrowUp")
    assert head.inner_text().startswith("self-attention, layer 0, head 1: ")
    assert cells.nth(1).get_attribute("aria-selected") == "true"
    assert opened.evaluate("document.activeElement.ariaLabel").endswith("layer 0, head 1: alpha 1.10")


def test_the_map_shows_the_measure_that_is_chosen(opened: Any) -> None:
    cells = opened.locator(".attention .cell")
    assert cells.all_inner_texts() == ["1.00", "1.10", "1.20", "1.30"]
    opened.locator(".attention select").select_option("density")
    assert cells.all_inner_texts() == ["0.50"] * 4
    assert "weights above zero" in opened.locator(".attention .note").first.inner_text()


def names(tab: Any) -> list[str]:
    return [text.strip() for text in tab.locator("figure.table tbody tr > :first-child").all_inner_texts()]


def test_a_table_sorts_by_numbers_within_its_sections(opened: Any) -> None:
    opened.get_by_role("button", name="loss, nats").click()
    assert names(opened) == ["ours", 'a, "quoted"', "b", HOSTILE, "others", "c"]
    opened.get_by_role("button", name="loss, nats").press("Enter")
    assert names(opened) == ["ours", "b", 'a, "quoted"', HOSTILE, "others", "c"]
    opened.get_by_role("button", name="share").click()
    assert names(opened) == ["ours", "b", 'a, "quoted"', HOSTILE, "others", "c"]


def test_a_table_is_copied_as_csv_and_markdown(opened: Any) -> None:
    opened.get_by_role("button", name="copy as CSV").click()
    rows = list(csv.reader(io.StringIO(opened.evaluate("navigator.clipboard.readText()"))))
    wanted = [[row.name] if isinstance(row, Section) else list(row) for row in TABLE.rows]
    assert rows == [list(TABLE.columns), *wanted]
    opened.get_by_role("button", name="copy as Markdown").click()
    text = opened.evaluate("navigator.clipboard.readText()")
    assert text.startswith("| name | loss, nats | share |\n| --- | ---: | ---: |\n") and "| b | 10.5 | 3.1% |" in text


def test_texts_are_searched_and_sorted(opened: Any) -> None:
    lines = opened.locator(".lines dl")
    assert opened.locator(".texts .shown").inner_text() == "4 of 4"
    opened.locator(".texts select").select_option("down")
    assert "line 3" in lines.first.inner_text()
    opened.get_by_label("search").fill("LINE 2")
    assert opened.locator(".texts .shown").inner_text() == "1 of 4"
    assert HOSTILE in opened.locator(".lines dl:visible dd").first.inner_text()
    assert opened.locator(".lines dl:visible mark").inner_text() == "b"


CONTRAST = """() => {
  const channel = (value) => (value /= 255, value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const lightness = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("main *, nav *")]
    .filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .filter((each) => each.getClientRects().length && !each.closest("svg") && each.tagName !== "OPTION")
    .map((each) => {
      const [a, b] = [lightness(rgb(getComputedStyle(each).color)), lightness(ground(each))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), `${each.tagName} ${each.className}: ${each.textContent.trim().slice(0, 40)}`];
    });
}"""


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast(opened: Any, is_dark: bool) -> None:
    if is_dark:
        opened.locator("#theme").click()
        assert opened.locator("#theme").inner_text() == "light"
    measured = opened.evaluate(CONTRAST)
    assert len(measured) > 40
    assert [text for ratio, text in measured if ratio < 4.5] == []


def test_a_narrow_page_is_not_wider_than_its_window(opened: Any) -> None:
    opened.set_viewport_size({"width": 390, "height": 800})
    opened.reload()
    opened.locator("figure.chart").scroll_into_view_if_needed()
    opened.locator("figure.chart[data-drawn] canvas").wait_for()
    assert opened.evaluate("document.documentElement.scrollWidth") == 390


def test_every_plot_and_button_has_a_name(opened: Any) -> None:
    opened.locator("figure.chart[data-drawn] canvas").wait_for()
    unnamed = "[...document.querySelectorAll('button, [role=img], select, input')].filter((each) => "
    unnamed += "!(each.ariaLabel || each.textContent.trim() || each.labels && each.labels.length)).length"
    assert opened.evaluate(unnamed) == 0
