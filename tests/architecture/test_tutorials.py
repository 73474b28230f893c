"""The tutorials as a newcomer runs them: Python and commands in their order, in an empty folder, to the picture."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import code_of

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
# What a page imports that may not be installed.
OPTIONAL = {"matplotlib": "matplotlib", "sklearn": "sklearn", "anymax.hf": "transformers"}
LARGEST = 60_000


class Block(NamedTuple):
    language: str
    line: int
    code: str
    output: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Python and commands of a page in order, each with the text block that follows it at once, if any."""
    text = page.read_text()
    pattern = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
    for match in pattern.finditer(text):
        yield Block(match[1], text[: match.start(2)].count("\n"), match[2], match[3])


def run_commands(block: Block) -> None:
    for line in block.code.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "anymax" and code_of(*arguments) == 0, line


def pictures(page: Path) -> list[Path]:
    """The pictures of a page that its own code draws."""
    names = re.findall(r"\]\(\.\./pictures/(tutorial-[\w-]+\.png)\)", page.read_text())
    return [DOCS / "pictures" / name for name in names]


@pytest.mark.parametrize(
    "page", [*TUTORIALS, DOCS / "how-to" / "use-a-trained-run.md"], ids=lambda page: page.stem
)
def test_a_tutorial_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for imported, package in OPTIONAL.items():
        if f"import {imported}" in page.read_text() or f"from {imported}" in page.read_text():
            pytest.importorskip(package)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "tutorial"}
    for block in blocks(page):
        capsys.readouterr()
        if block.language == "sh":
            run_commands(block)
        else:
            # Padded, so that an error shows the line of the page.
            exec(compile("\n" * block.line + block.code, page, "exec"), names)
        assert block.output is None or capsys.readouterr().out == block.output, f"{page.name}, line {block.line}"
    for picture in pictures(page):
        assert (tmp_path / picture.name.removeprefix("tutorial-")).read_bytes().startswith(b"\x89PNG")


def test_tutorials_show_the_picture_that_they_draw():
    assert TUTORIALS
    for page in TUTORIALS:
        (picture,) = pictures(page)
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < LARGEST, picture.name
