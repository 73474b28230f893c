"""Pairs of lines, a sentence and its translation: from two files, from a table or from memory, with their places."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

from anymax.data.text.corpus import Files
from anymax.data.text.lines import open_lines

Languages = tuple[str, str]
TABLES = (".tsv", ".jsonl")


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    source_line: int
    """Where it stands in its file, from 1."""
    target_line: int


class PairSource(Protocol):
    """Pairs that can be read again and again."""

    def pairs(self) -> Iterator[Pair]:
        """The pairs, from the first."""
        ...

    def places(self, pair: Pair) -> tuple[str, str]:
        """Where both sides of a pair stand, for messages."""
        ...

    def place(self) -> str:
        """Where they come from; the same after the text was changed."""
        ...

    def fingerprint(self) -> str:
        """A short text that differs when the pairs may differ; found without reading large files."""
        ...


@dataclass(frozen=True)
class FilePairs:
    """Line by line out of two files, which must have as many lines as each other.

    Files of the IWSLT are read as they come: of those whose name ends in .xml the lines of segments, of those whose
    name begins with train.tags all lines but those of tags.

    Args:
        first, end: take the pairs from number `first` to before number `end`.
    """

    source: Path
    target: Path
    encoding: str = "utf-8"
    first: int = 0
    end: int | None = None

    def pairs(self) -> Iterator[Pair]:
        return islice(self._all(), self.first, self.end)

    def places(self, pair: Pair) -> tuple[str, str]:
        return f"{self.source} line {pair.source_line}", f"{self.target} line {pair.target_line}"

    def place(self) -> str:
        return f"{self.source.resolve()}\n{self.target.resolve()}{_stretch(self.first, self.end)}"

    def fingerprint(self) -> str:
        return Files((self.source, self.target), self.encoding).fingerprint()

    def _all(self) -> Iterator[Pair]:
        sides = _numbered(self.source, self.encoding), _numbered(self.target, self.encoding)
        for number, (source, target) in enumerate(zip_longest(*sides)):
            if source is None or target is None:
                # One side has ended, so what is left of the other is without a partner.
                ours, theirs = (
                    number + (line is not None) + sum(1 for _ in rest)
                    for line, rest in zip((source, target), sides, strict=True)
                )
                longer, line = (self.source, source) if target is None else (self.target, target)
                assert line is not None
                raise ValueError(
                    f"{self.source} and {self.target} must have as many sentences as each other, a line for a line, "
                    f"got {ours:,} and {theirs:,}: {longer} line {line[0]} has no translation; "
                    "find the line that was lost or added, or check that both files are of one text"
                )
            yield Pair(source[1], target[1], source[0], target[0])


@dataclass(frozen=True)
class TablePairs:
    """Out of one file with a pair on each line, .tsv or .jsonl, also packed as .gz.

    A line of a .jsonl is an object that has each language as a text: {"de": "Ja.", "en": "Yes."}, or holds such an
    object as "translation". A line of a .tsv is the source, a tab and the target; where the first line names both
    languages, it says in which columns they are, and there may be others.

    Args:
        languages: those of source and target; a .tsv without a first line of names can do without.
        first, end: take the pairs from number `first` to before number `end`.
    """

    path: Path
    languages: Languages | None = None
    encoding: str = "utf-8"
    first: int = 0
    end: int | None = None

    def pairs(self) -> Iterator[Pair]:
        return islice(self._from_tabs() if table_of(self.path) == ".tsv" else self._from_json(), self.first, self.end)

    def places(self, pair: Pair) -> tuple[str, str]:
        names = self.languages or ("source", "target")
        return f"{self.path} line {pair.source_line} ({names[0]})", f"{self.path} line {pair.target_line} ({names[1]})"

    def place(self) -> str:
        return f"{self.path.resolve()} {' '.join(self.languages or ())}{_stretch(self.first, self.end)}"

    def fingerprint(self) -> str:
        return Files((self.path,), self.encoding).fingerprint()

    def _from_tabs(self) -> Iterator[Pair]:
        columns, width = (0, 1), 2
        for number, line in enumerate(open_lines(self.path, encoding=self.encoding), start=1):
            cells = [cell.strip() for cell in line.split("\t")]
            if number == 1 and self.languages is not None and set(self.languages) <= set(cells):
                columns, width = (cells.index(self.languages[0]), cells.index(self.languages[1])), len(cells)
                continue
            if cells == [""]:
                yield Pair("", "", number, number)
                continue
            if len(cells) != width:
                raise ValueError(
                    f"{self.path} line {number} must have {width} columns with a tab between two, got {len(cells)}: "
                    f"{_shown(line)}; mend the line"
                )
            yield Pair(cells[columns[0]], cells[columns[1]], number, number)

    def _from_json(self) -> Iterator[Pair]:
        if self.languages is None:
            raise ValueError(
                f"{self.path} names its languages on each line, so languages must say which is the source and which "
                "the target, got None; give languages, such as ('de', 'en') (--data.languages de en)"
            )
        for number, line in enumerate(open_lines(self.path, encoding=self.encoding), start=1):
            if not line.strip():
                yield Pair("", "", number, number)
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise ValueError(f"{self.path} line {number} must be a JSON object, got {_shown(line)}") from None
            source, target = texts_of(row, self.languages, f"{self.path} line {number}")
            yield Pair(source, target, number, number)


class MemoryPairs:
    """Pairs held in memory; their hash is the fingerprint.

    Args:
        name: where they come from.
    """

    def __init__(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self._pairs = tuple(pairs)

    def pairs(self) -> Iterator[Pair]:
        return (Pair(source, target, line, line) for line, (source, target) in enumerate(self._pairs, start=1))

    def places(self, pair: Pair) -> tuple[str, str]:
        return f"the source of pair {pair.source_line} of {self.name}", f"its target, pair {pair.target_line}"

    def place(self) -> str:
        return self.name

    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(f"{source}\t{target}" for source, target in self._pairs).encode()).hexdigest()


def table_of(path: Path) -> str | None:
    """The kind of table that a file is by its name, .tsv or .jsonl; None for other files."""
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    return ending if ending in TABLES else None


def texts_of(row: object, languages: Languages, place: str) -> Languages:
    """The source and the target of a row with a text for each language, each on one line.

    Args:
        place: where the row stands, for messages.
    """
    if isinstance(row, dict) and isinstance(row.get("translation"), dict):
        row = row["translation"]
    found = [row.get(language) if isinstance(row, dict) else None for language in languages]
    source, target = (" ".join(text.splitlines()) if isinstance(text, str) else None for text in found)
    if source is None or target is None:
        raise ValueError(
            f'{place} must hold a text for each language: {{"{languages[0]}": "...", "{languages[1]}": "..."}}, '
            f"got {_shown(json.dumps(row, ensure_ascii=False, default=repr))}; mend it, or give other languages"
        )
    for text in (source, target):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{place} holds half of a surrogate pair, which is no character: {_shown(repr(text))}")
    return source, target


def _numbered(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """The sentences of a file with the numbers of their lines."""
    lines = enumerate(open_lines(path, encoding=encoding), start=1)
    if path.name.removesuffix(".gz").endswith(".xml"):
        return (
            (number, line.partition(">")[2].rpartition("</seg>")[0].strip())
            for number, line in lines
            if line.lstrip().startswith("<seg ")
        )
    if path.name.startswith("train.tags"):
        return ((number, line.strip()) for number, line in lines if not line.lstrip().startswith("<"))
    return lines


def _stretch(first: int, end: int | None) -> str:
    return "" if (first, end) == (0, None) else f" pairs {first} to {end}"


def _shown(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
