"""The table of contents of the site, read from the lists of the pages themselves.

An index is a page called README.md. Its list items that begin with a link to a page are its contents, heading by
heading, so that a page is listed once, for readers of the files and for the site.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

INDEX = "README"
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ITEM = re.compile(r"^(?:- |\d+\. )\[[^\]]+\]\(([^)#\s]+)\.md\)", re.MULTILINE)


def contents(text: str) -> Iterator[tuple[str, list[str]]]:
    """The headings of an index that have pages, each with its pages, relative to the index."""
    _, *parts = _HEADING.split(text)
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        if pages := _ITEM.findall(body):
            yield heading, pages


def toctrees(text: str) -> str:
    """The contents of an index as Sphinx wants them."""
    blocks = (
        f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(pages) + "\n```\n"
        for heading, pages in contents(text)
    )
    return "".join(blocks)


def reachable(docs: Path) -> set[str]:
    """The pages that are found from the index of the folder, without their suffix."""
    found: set[str] = set()
    waiting = [INDEX]
    while waiting:
        page = waiting.pop()
        found.add(page)
        if PurePosixPath(page).name == INDEX:
            folder = PurePosixPath(page).parent
            listed = [pages for _, pages in contents((docs / f"{page}.md").read_text(encoding="utf-8"))]
            waiting += {str(folder / name) for pages in listed for name in pages} - found
    return found
