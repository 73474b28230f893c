"""From a line of text to words and back: by spaces for tokenized text, by a small pattern for raw prose."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Literal, get_args

from anymax.data.units.lexicon import UNK

Splitting = Literal["spaces", "prose", "marked"]

# Stands before a word that follows a space, in words that are marked: U+2581, which no keyboard has.
SPACE = "▁"

# Marks that stand directly before what follows, and directly after what comes before.
_OPENING = frozenset("([{$“‘£#-")
_CLOSING = frozenset(")]},.;:!?%”’…-")
# Marks on one letter that NFC sorts, in a time that grows with the square of their number. Text has a few.
MOST_MARKS = 256


def split_line(line: str, splitting: Splitting) -> list[str]:
    """The words of a line.

    Args:
        line: the text.
        splitting: "spaces" takes what stands between whitespace; "prose" takes words, numbers and punctuation apart,
            case kept, after Unicode's NFC, but for lines with more than 256 marks on one letter. Prose suits scripts
            that separate words by spaces. "marked" takes the same words, with "▁" before the first and before each
            that follows a space, so that `join_words` gives the line back; a "▁" of the text itself becomes "_".

    Example:
        >>> from anymax.data import split_line
        >>> split_line("It isn't 1,000.", "prose")
        ['It', "isn't", '1,000', '.']
        >>> split_line("It isn't 1,000.", "spaces")
        ['It', "isn't", '1,000.']
    """
    if splitting == "spaces":
        return line.split()
    if line.isascii():
        pattern = _prose(r"\w")
    else:
        pattern = _prose(_letter())
        line = unicodedata.normalize("NFC", line) if _many_marks().search(line) is None else line
    if splitting == "prose":
        return pattern.findall(line)
    line = f" {line.replace(SPACE, '_')}"
    return [SPACE + match[0] if line[match.start() - 1].isspace() else match[0] for match in pattern.finditer(line)]


def split_lines(lines: Iterable[str], splitting: Splitting) -> Iterator[list[str]]:
    """The words of each line.

    Lines without words count in tokenized text, where published figures hold one end mark for each. In prose they only
    separate paragraphs and are skipped.
    """
    if splitting not in get_args(Splitting):
        raise ValueError(f"splitting must be one of {', '.join(get_args(Splitting))}, got {splitting!r}")
    return (words for line in lines if (words := split_line(line, splitting)) or splitting == "spaces")


def join_words(words: Iterable[str], splitting: Splitting) -> str:
    """Words as one line of text to read.

    Words by spaces and marked words give the line they were split from, with one space for each run of whitespace.
    Marks of prose stand where print has them, as far as that can be known.
    """
    if splitting == "spaces":
        return " ".join(words)
    if splitting == "marked":
        # An unknown word is there without its mark; most follow a space.
        spaced = (SPACE + word if word == UNK else word for word in words)
        return "".join(spaced).replace(SPACE, " ").removeprefix(" ")
    text, is_quoted, is_open = "", False, True
    for word in words:
        opens = word in _OPENING or (word == '"' and not is_quoted)
        closes = word in _CLOSING or (word == '"' and is_quoted)
        is_quoted ^= word == '"'
        text += word if is_open or closes else f" {word}"
        is_open = opens
    return text


@cache
def _prose(letter: str) -> re.Pattern[str]:
    """What is a word of prose, where `letter` is a class of the characters that words are made of."""
    return re.compile(
        "|".join(
            [
                # 1,234.5 and 9:04 and 1/2, with what is written on to them: 1.5M, 21st.
                rf"\d+(?:[.,:/]\d+)*{letter}*",
                # U.S. and p.m.; without a bound, a long run that ends in a letter is tried from each of its letters.
                rf"(?:[^\W\d_]\.){{2,32}}(?!{letter})",
                # Words with what belongs inside: don't, AT&T.
                rf"{letter}+(?:['’&]{letter}+)*",
                r"-{2,}",
                r"\.{2,}",
                # Any other mark by itself.
                r"[^\w\s]",
            ]
        )
    )


@cache
def _letter() -> str:
    r"""Python's `\w` and what it leaves out of words: vowel signs, accents and joiners."""
    joiners = "\u200c\u200d"
    return rf"[\w{joiners}{_marks()}]"


@cache
def _many_marks() -> re.Pattern[str]:
    return re.compile(rf"[{_marks()}]{{{MOST_MARKS + 1}}}")


@cache
def _marks() -> str:
    """Vowel signs and accents, as ranges for a class of characters."""
    # Scripts in use lie in the first two planes.
    marks = [code for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    # Within a run of neighbours, code and place rise together.
    runs = [[code for _, code in run] for _, run in groupby(enumerate(marks), key=lambda item: item[1] - item[0])]
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)
