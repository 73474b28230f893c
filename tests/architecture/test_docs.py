"""The pages: examples run and print what they show, links lead somewhere."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.each import each

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# Written by a measurement: a link to it is checked once it is there.
MEASURED = DOCS / "results" / "mappings.md"
SMALL = 150_000


class Example(NamedTuple):
    line: int
    code: str
    output: str | None


def examples(page: Path) -> list[Example]:
    """The Python blocks of a page in order, each with the text block that follows it at once, if any."""
    text = page.read_text()
    pattern = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
    return [Example(text[: match.start(1)].count("\n"), match[1], match[2]) for match in pattern.finditer(text)]


def links(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [link.partition("#")[0] for link in found if not re.match(r"https?:|#", link)]


def is_run_in_order(page: Path) -> bool:
    """Whether it is run by test_tutorials.py, its commands too."""
    return page.parent.name == "tutorials" or page.name == "use-a-trained-run.md"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# torch's own, when torch.func.hessian is first called.
@pytest.mark.parametrize("page", [page for page in PAGES if examples(page) and not is_run_in_order(page)], ids=name)
def test_examples_print_what_the_page_shows(page: Path):
    if "import anymax.hf" in page.read_text():
        pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")
    names: dict[str, object] = {"__name__": "example"}
    for example in examples(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Padded, so that an error shows the line of the page.
            exec(compile("\n" * example.line + example.code, page, "exec"), names)
        assert example.output is None or printed.getvalue() == example.output


@each("page", PAGES)
def test_links_lead_to_files(page: Path):
    targets = [(page.parent / link).resolve() for link in links(page)]
    missing = [target for target in targets if not target.exists() and target != MEASURED]
    assert missing == []


def test_links_are_told_from_addresses_and_code(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("[a](b.md#c) [d](https://e.org) [f](#g)\n```\n[h](i.md)\n```\n![j](k.png)\n")
    assert links(page) == ["b.md", "k.png"]


def script_of_pictures(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "pictures" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_pictures_can_be_drawn_again_and_are_small(tmp_path: Path):
    pytest.importorskip("matplotlib")
    script_of_pictures("simplex").draw(tmp_path / "mappings.png")
    script_of_pictures("heads").main(tmp_path / "heads.png", steps=1)
    script_of_pictures("sharing").draw(tmp_path / "sharing.png")
    names = ("mappings.png", "heads.png", "sharing.png")
    for picture in [folder / name for folder in (tmp_path, DOCS / "pictures") for name in names]:
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < SMALL


def test_pages_name_files_that_are_there():
    for page in (DOCS / "concepts" / "architecture.md", ROOT / "CONTRIBUTING.md"):
        named = {path for path in re.findall(r"`([\w/]+/[\w.]+\.py)`", page.read_text()) if "<" not in path}
        assert named
        missing = [path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "anymax"))]
        assert missing == [], f"{page.name} names files that are not there"
