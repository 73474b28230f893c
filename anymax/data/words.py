"""From a line of text to words: by spaces for text that is tokenized already, by a small pattern for raw prose."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

Splitting = Literal["spaces", "prose"]

# Numbers with their points and commas, words with their apostrophes, dashes and dots that belong together, other marks.
_PROSE = re.compile(r"\d+(?:[.,]\d+)*(?!\w)|\w+(?:['’]\w+)*|--|\.\.\.|[^\w\s]")


def split_line(line: str, splitting: Splitting) -> list[str]:
    """The words of a line.

    Args:
        splitting: "spaces" takes what stands between whitespace; "prose" takes words, numbers and punctuation apart,
            case kept, after Unicode's NFC. Prose suits scripts that part words by spaces.
    """
    if splitting == "spaces":
        return line.split()
    return _PROSE.findall(unicodedata.normalize("NFC", line))


def split_lines(lines: Iterable[str], splitting: Splitting) -> Iterator[list[str]]:
    """The words of each line.

    Lines without words count in tokenized text, where published figures hold one end mark for each. In prose they only
    part paragraphs and are left out.
    """
    if splitting not in get_args(Splitting):
        raise ValueError(f"splitting must be one of {', '.join(get_args(Splitting))}, got {splitting!r}")
    return (words for line in lines if (words := split_line(line, splitting)) or splitting == "spaces")
