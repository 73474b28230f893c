"""Pages as files of HTML: all that they need is inside, and text of files stays text."""

import base64
import json
import re
import struct
import zlib
from pathlib import Path

import pytest

from anymax.display import (
    Attended,
    AttentionView,
    Axis,
    Chart,
    Heading,
    HeadRow,
    Line,
    Marked,
    Notice,
    Page,
    Part,
    Picture,
    Pictures,
    Table,
    Texts,
    bars,
    document,
    lines,
    marked,
)
from anymax.display.chart import in_script

pytest.importorskip("vl_convert")

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028\ud800"


def chart(text: str = "loss") -> Chart:
    columns = {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5], "run": [text] * 3}
    spec = lines(Axis("step", "steps"), Axis("loss", text), Axis("run", "", kind="nominal"))
    return Chart(text, columns, spec, "metrics.jsonl", text, (("steps", "step"),))


def heads(text: str = "word") -> AttentionView:
    example = {"encoder": Attended((text, "b"), (text, "b"), bytes([0, 255, 128, 1]))}
    head = HeadRow("encoder", 0, 0, {"alpha": 1.5}, (1.4, 1.5), (0,), text)
    return AttentionView(text, {"encoder": text}, {"alpha": text}, {}, (head,), (0, 1), (example,), text)


def everything(text: str) -> tuple[Part, ...]:
    picture = Picture(2, bytes([0, 255, 128, 64]))
    return (
        Heading(text),
        Notice(text),
        Table((text, "b"), ((text, "1"),), text, source=text),
        chart(text),
        heads(text),
        Texts(text, (text,), (Line((marked(text, "b"),), 1.0), Line((text,), None)), text, text),
        Pictures(text, ((text, (picture, picture)),), source=text),
    )


def test_hostile_text_is_never_markup() -> None:
    html = document(Page(HOSTILE, everything(HOSTILE)))
    assert "alert(1)</script>" not in html and "<img src=x" not in html
    html.encode()
    # Scripts are ours, and those that hold data.
    opened = re.findall(r"<script[^>]*>", html)
    assert opened.count('<script type="application/json">') == 2 and len(opened) == 4


def test_a_page_names_no_other_file_or_host() -> None:
    html = document(Page("A", everything("b")))
    without_scripts = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", without_scripts)
    assert "http://" not in without_scripts and "https://" not in without_scripts


def test_vega_is_in_pages_with_plots_alone() -> None:
    assert len(document(Page("A", (chart(),)))) > 500_000
    assert len(document(Page("A", (heads(), Table(("a",), (("1",),)))))) < 60_000


def test_without_vl_convert_a_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from anymax.display.chart import vega_script

    vega_script.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anymax\[report\]'"):
        document(Page("A", (chart(),)))
    vega_script.cache_clear()


def test_links_lead_to_headings_of_the_same_name_too() -> None:
    html = document(Page("A", (Heading("Über <b>"), Heading("Heads"), Heading("Heads"), Heading("..."))))
    names = re.findall(r'<h2 id="([^"]+)">', html)
    assert len(set(names)) == 4
    assert [f"#{name}" for name in names] == re.findall(
        r'<a href="(#[^"]+)">', html.split("<nav")[1].split("</nav>")[0]
    )


def test_data_in_a_script_is_json_that_a_browser_reads_back() -> None:
    values = {"text": HOSTILE.replace("\ud800", ""), "numbers": [1.5, float("nan"), float("inf"), None], "none": ()}
    read = json.loads(in_script(values))
    assert read == {"text": values["text"], "numbers": [1.5, None, None, None], "none": []}


def test_words_that_differ_are_marked() -> None:
    cases = {
        ("a b c", "a b c"): [],
        ("a x c", "a b c"): ["x"],
        ("a b c d e", "a b e"): ["c d"],
        ("x b", "b y"): ["x"],
        ("a  b", "a b"): [""],
    }
    for (text, beside), wanted in cases.items():
        found = marked(text, beside)
        assert found.text == text
        assert [part for part, is_marked in found.parts if is_marked] == wanted


def test_a_marked_text_is_escaped_part_by_part() -> None:
    assert Marked((("<a>", True), (" & b", False))).html() == "<mark>&lt;a&gt;</mark> &amp; b"


def test_a_picture_is_a_png_with_its_pixels() -> None:
    pixels = bytes(range(0, 240, 10))
    png = Picture(6, pixels).png()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (6, 4)
    begin = png.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", png[begin - 8 : begin - 4])
    rows = zlib.decompress(png[begin : begin + length])
    assert b"".join(rows[row * 7 + 1 : row * 7 + 7] for row in range(4)) == pixels and rows[::7] == bytes(4)
    assert struct.unpack(">I", png[begin + length : begin + length + 4])[0] == zlib.crc32(
        png[begin - 4 : begin + length]
    )


def test_a_picture_has_whole_rows() -> None:
    with pytest.raises(ValueError, match="pixels must be rows of 3, got 4"):
        Picture(3, bytes(4))


def test_columns_of_a_chart_are_of_one_length() -> None:
    with pytest.raises(ValueError, match=r"columns must be of one length, got \{'a': 1, 'b': 2\}"):
        Chart("A", {"a": [1], "b": [1, 2]}, bars(Axis("a", "a"), Axis("b", "b")))


def test_lines_of_texts_have_a_text_for_every_heading() -> None:
    with pytest.raises(ValueError, match=r"lines must have a text for each of \('a', 'b'\)"):
        Texts("A", ("a", "b"), (Line(("x",)),))


def test_weights_are_written_byte_for_byte() -> None:
    given = json.loads(re.search(r'application/json">(.*?)</script>', heads().html())[1])
    assert base64.b64decode(given["examples"][0]["encoder"]["weights"]) == bytes([0, 255, 128, 1])


def test_lines_have_one_legend_with_their_colours_and_dashes() -> None:
    import vl_convert

    for options in ({}, {"points": True}, {"band": True}):
        colour = Axis("run", "", kind="nominal", order=("a", "b"))
        spec = lines(Axis("step", "steps"), Axis("loss", "loss"), colour, **options)
        rows = [{"step": step, "loss": 1.0 / step, "run": run} for step in (1, 2) for run in "ab"]
        svg = vl_convert.vegalite_to_svg({**spec, "data": {"values": rows}})
        (legend,) = re.findall(r'role-legend"(.*)', svg, flags=re.DOTALL)
        symbols = re.findall(r'<path [^>]*stroke="(#[^"]+)"[^>]*stroke-dasharray="([^"]+)"', legend)
        assert len(symbols) == 2 and len({colour for colour, _ in symbols}) == len({dash for _, dash in symbols}) == 2


def test_charts_are_specifications_that_vega_lite_takes(tmp_path: Path) -> None:
    import vl_convert

    for made in (chart(), Chart("B", {"a": ["x"], "b": [1.0]}, bars(Axis("a", "", kind="nominal"), Axis("b", "b")))):
        rows = [dict(zip(made.columns, row, strict=True)) for row in zip(*made.columns.values(), strict=True)]
        svg = vl_convert.vegalite_to_svg({**made.spec, "data": {"values": rows}})
        assert svg.startswith("<svg") and svg.count("<path") > 2
