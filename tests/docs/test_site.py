"""The site: every page is in its table of contents, words are found, and docstrings become what they mean."""

import re
from pathlib import Path

import docstrings
import indexes
import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_is_in_the_table_of_contents():
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert pages - indexes.reachable(DOCS) == set()


def test_a_page_is_listed_once():
    indices = [DOCS / f"{page}.md" for page in indexes.reachable(DOCS) if page.endswith(indexes.INDEX)]
    listed = [
        (index.parent / page).resolve()
        for index in indices
        for _, pages in indexes.contents(index.read_text())
        for page in pages
    ]
    assert len(indices) > 3 and len(set(listed)) == len(listed)


def test_the_contents_are_the_items_that_begin_with_a_link():
    text = "[a](a.md)\n## One\n- [b](b.md): as [c](c.md)\n- d\n\n## Two\n1. [e\n   f](e/f.md)\n2. [g](g.py)\n## Three\n"
    assert list(indexes.contents(text)) == [("One", ["b"]), ("Two", ["e/f"])]
    assert ":caption: Two\n\ne/f\n```" in indexes.toctrees(text)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("logits", "concepts/mappings.md"),
        ("logits", "concepts/vocabulary.md"),
        ("learning rate", "concepts/training.md"),
        ("subword", "concepts/data.md"),
        ("sparse attention", "concepts/attention.md"),
        ("Gumbel", "concepts/latents.md"),
    ],
)
def test_what_readers_search_for_stands_in_the_page_about_it(words: str, page: str):
    prose = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert words in prose.lower().replace("gumbel", "Gumbel")


def as_rst(text: str, *parameters: str) -> str:
    return "\n".join(docstrings.converted(text.splitlines(), docstrings.Links("anymax.mappings", parameters)))


def test_names_in_backticks_link_to_what_they_name():
    assert as_rst("As `entmax` does.") == "As :py:obj:`entmax <anymax.mappings.entmax>` does."
    assert as_rst("In `anymax.Bands`.") == "In :py:obj:`anymax.Bands <anymax.vocabulary.Bands>`."
    assert as_rst("As `entmax`.", "entmax") == "As ``entmax``."
    assert as_rst("The `scores`, `a\n* b` and `k`s.") == "The ``scores``, ``a * b`` and ``k``\\ s."


def test_what_prose_means_as_a_character_is_no_markup():
    assert as_rst("The norm |p|_2, a * b and tie_.") == r"The norm \|p\|\_2, a \* b and tie\_."


def test_formulas_and_examples_stay_as_they_are():
    text = "Map.\n\n    |p|^2 * `x`\n\nArgs:\n    dim: of `scores`.\n\n"
    text += "Example:\n    >>> a_ * 2  # `b`\n    |c|\n\n    As `d`.\n\nEnd `e`."
    assert as_rst(text).splitlines() == [
        "Map.",
        "",
        "::",
        "",
        "    |p|^2 * `x`",
        "",
        "Args:",
        "    dim: of ``scores``.",
        "",
        "Example:",
        "    >>> a_ * 2  # `b`",
        "    |c|",
        "",
        "    As ``d``.",
        "",
        "End ``e``.",
    ]
