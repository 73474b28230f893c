"""Where the lines of one split come from: files, a stretch of a file, or lines made by the program."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anymax.data.text.lines import open_lines


class Source(Protocol):
    """Lines that can be read again and again."""

    def lines(self) -> Iterator[str]:
        """The lines, from the first."""
        ...

    def place(self) -> str:
        """Where they come from; the same after the text was changed."""
        ...

    def fingerprint(self) -> str:
        """A short text that differs when the lines may differ; found without reading large files."""
        ...


@dataclass(frozen=True)
class Files:
    """The lines of files, one file after the other.

    Sizes and times of change make the fingerprint, so it costs nothing; a file that was touched counts as changed.

    Args:
        first, end: take the lines from number `first` to before number `end`, counting only lines that hold words.
    """

    paths: tuple[Path, ...]
    encoding: str = "utf-8"
    first: int = 0
    end: int | None = None

    def lines(self) -> Iterator[str]:
        number = 0
        for path in self.paths:
            for line in open_lines(path, encoding=self.encoding):
                if self.end is not None and number >= self.end:
                    return
                if number >= self.first:
                    yield line
                number += bool(line.strip())

    def place(self) -> str:
        stretch = "" if (self.first, self.end) == (0, None) else f" lines {self.first} to {self.end}"
        return "\n".join(str(path.resolve()) for path in self.paths) + stretch

    def fingerprint(self) -> str:
        stats = [os.stat(path) for path in self.paths]
        return f"{self.encoding} " + " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)


class Lines:
    """Lines held in memory; their hash is the fingerprint.

    Args:
        name: where they come from.
    """

    def __init__(self, name: str, lines: Iterable[str]) -> None:
        self.name = name
        self._lines = tuple(lines)

    def lines(self) -> Iterator[str]:
        return iter(self._lines)

    def place(self) -> str:
        return self.name

    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest()
