"""Corpus: a text in up to three splits (train, valid, test), from a folder, from files, or cut from one file."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol, get_args

from anymax.data.text.lines import GZIP_MAGIC, open_lines
from anymax.data.text.words import Splitting, split_lines
from anymax.data.units.lexicon import EOS
from anymax.files import check_file

Split = Literal["train", "valid", "test"]
# How many times as large a text is as gzip makes it, about.
PACKED = 3


PathLike = str | os.PathLike[str]


# What files call the splits.
_CALLED: dict[str, Split] = {"train": "train", "training": "train", "test": "test"}


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


_CALLED |= {"valid": "valid", "validation": "valid", "val": "valid", "dev": "valid"}


@dataclass(frozen=True)
class Corpus:
    """Splits of a text, one sentence or paragraph per line.

    Args:
        name: what it is called in messages and file names.
        sources: the lines of each split there is.
        splitting: how a line becomes words, see `split_line`.

    Example:
        >>> from anymax.data import corpus_of_lines
        >>> corpus = corpus_of_lines("poem", ["Roses are red,", "violets are blue.", "Sugar is sweet."])
        >>> list(corpus.sources)
        ['train', 'valid', 'test']
        >>> next(corpus.sentences("train"))
        ['Roses', 'are', 'red', ',']
    """

    name: str
    sources: Mapping[Split, Source]
    splitting: Splitting = "spaces"

    def source(self, split: Split) -> Source:
        """The lines of a split."""
        if split not in get_args(Split):
            raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
        if split not in self.sources:
            raise ValueError(f"{self.name} has no {split} split, only {', '.join(self.sources)}; give it a file")
        return self.sources[split]

    def sentences(self, split: Split) -> Iterator[list[str]]:
        """The words of each line."""
        return split_lines(self.source(split).lines(), self.splitting)

    def words(self, split: Split) -> Iterator[str]:
        """All words of a split, with "<eos>" at the end of each line: what `Lexicon.from_words` takes."""
        return chain.from_iterable([*words, EOS] for words in self.sentences(split))


def corpus_of_files(
    train: PathLike | Sequence[PathLike],
    valid: PathLike | None = None,
    test: PathLike | None = None,
    *,
    name: str | None = None,
    splitting: Splitting = "spaces",
    encoding: str = "utf-8",
) -> Corpus:
    r"""A corpus whose splits are given one file each, plain or gzip; train may be several, read one after the other.

    Args:
        train, valid, test: the files; without valid or test the corpus has no such split.
        name: what the corpus is called; by default the name of the first file.
        splitting: how lines become words, see `split_line`.
        encoding: how characters are written, such as latin-1.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import corpus_of_files
        >>> for name in ("a.txt", "b.txt"):
        ...     _ = Path(name).write_text(f"this is {name}\n")
        >>> corpus = corpus_of_files(train=["a.txt", "b.txt"], name="letters")
        >>> list(corpus.sentences("train"))
        [['this', 'is', 'a.txt'], ['this', 'is', 'b.txt']]
    """
    parts = tuple(Path(path) for path in ([train] if isinstance(train, str | os.PathLike) else train))
    if not parts:
        raise ValueError("train must name at least one file, got an empty sequence")
    sources: dict[Split, Files] = {"train": Files(parts, encoding)}
    if valid is not None:
        sources["valid"] = Files((Path(valid),), encoding)
    if test is not None:
        sources["test"] = Files((Path(test),), encoding)
    for source in sources.values():
        _check_begins(source)
    return Corpus(name or name_of_file(parts[0]), sources, splitting)


def corpus_in_folder(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    splitting: Splitting = "spaces",
    encoding: str = "utf-8",
) -> Corpus:
    r"""A corpus whose splits are found by their names in a folder: train.txt, ptb.valid.txt.gz, wiki.test.tokens.

    A name says its split by a part between dots, dashes or underscores: train, valid (or val, dev), test. There must
    be one file for train and at most one for each other split.

    Args:
        folder: where the files lie.
        name: what the corpus is called; by default the folder's name.
        splitting: how lines become words, see `split_line`.
        encoding: how characters are written, such as latin-1.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import corpus_in_folder
        >>> for split in ("train", "valid"):
        ...     _ = Path(f"my.{split}.txt").write_text("one line\nanother line\n")
        >>> list(corpus_in_folder(".", name="my text").sources)
        ['train', 'valid']
    """
    folder = Path(folder)
    found = find_splits(folder)
    return corpus_of_files(
        found["train"],
        found.get("valid"),
        found.get("test"),
        name=name or folder.resolve().name,
        splitting=splitting,
        encoding=encoding,
    )


def corpus_from_file(
    path: str | os.PathLike[str],
    *,
    valid: float = 0.05,
    test: float = 0.05,
    splitting: Splitting = "prose",
    encoding: str = "utf-8",
) -> Corpus:
    r"""A corpus cut from one file: its last lines are the test split, those before them valid, the rest train.

    Nothing is drawn by chance. Only lines that hold words are counted, in one pass over the file.

    Args:
        path: a text file, plain or gzip.
        valid, test: the share of the lines for each, rounded, but at least one line; 0 leaves the split out.
        splitting: how lines become words, see `split_line`.
        encoding: how characters are written, such as latin-1.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import corpus_from_file
        >>> _ = Path("book.txt").write_text("It was late.\nNobody slept.\nThe bell rang.\n")
        >>> corpus = corpus_from_file("book.txt")
        >>> list(corpus.sentences("test"))
        [['The', 'bell', 'rang', '.']]
    """
    path = Path(path)
    return _cut((path,), name_of_file(path), valid, test, splitting, encoding)


def corpus_of_texts(
    folder: str | os.PathLike[str],
    *,
    valid: float = 0.05,
    test: float = 0.05,
    splitting: Splitting = "prose",
    encoding: str = "utf-8",
) -> Corpus:
    """A corpus cut from the files of a folder that end in .txt or .txt.gz, read in the order of their names as one.

    Args:
        valid, test: as in `corpus_from_file`.
    """
    folder = Path(folder)
    return _cut(tuple(texts_in(folder)), folder.resolve().name, valid, test, splitting, encoding)


def _cut(paths: tuple[Path, ...], name: str, valid: float, test: float, splitting: Splitting, encoding: str) -> Corpus:
    num_lines = sum(bool(line.strip()) for path in paths for line in open_lines(path, encoding=encoding))
    edges = cut_lines(num_lines, valid, test, str(paths[0] if len(paths) == 1 else paths[0].parent))
    sources = {split: Files(paths, encoding, first, end) for split, (first, end) in edges.items()}
    return Corpus(name, sources, splitting)


def corpus_of_lines(
    name: str, lines: list[str], *, valid: float = 0.05, test: float = 0.05, splitting: Splitting = "prose"
) -> Corpus:
    """A corpus cut from lines in memory, as `corpus_from_file` cuts a file.

    Args:
        name: what the corpus is called.
        lines: sentences or paragraphs; the last are the test split, those before them valid, the rest train.
        valid, test: the share of the lines for each, rounded, but at least one line; 0 leaves the split out.
        splitting: how lines become words, see `split_line`.

    Example:
        >>> from anymax.data import corpus_of_lines
        >>> corpus = corpus_of_lines("poem", ["Roses are red,", "violets are blue.", "Sugar is sweet."])
        >>> list(corpus.words("train"))
        ['Roses', 'are', 'red', ',', '<eos>']
    """
    edges = cut_lines(len(lines), valid, test, name)
    sources = {split: Lines(f"{name} {split}", lines[first:end]) for split, (first, end) in edges.items()}
    return Corpus(name, sources, splitting)


def find_splits(folder: Path, among: Sequence[Path] | None = None) -> dict[Split, Path]:
    """The file of each split in a folder.

    Args:
        among: those of its files that count; None for all.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; check the name, or bring the corpus there")
    found: dict[Split, list[Path]] = {}
    for path in sorted(folder.iterdir() if among is None else among):
        # A broken link or a pipe counts, so that opening it says what is wrong.
        if not path.is_dir() and not path.name.startswith(".") and (split := split_of(path.name)):
            found.setdefault(split, []).append(path)
    for split, paths in found.items():
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise ValueError(f"{folder} has {len(paths)} files for {split}: {names}; name the ones to use")
    if "train" not in found:
        others = ", ".join(path.name for paths in found.values() for path in paths)
        there = f"only {others}" if others else "nor any other file named for a split"
        raise ValueError(f"{folder} has no train file, {there}; call one train.txt, or name the files to use")
    return {split: paths[0] for split, paths in found.items()}


def texts_in(folder: Path) -> list[Path]:
    """The files of a folder that hold one text together: those that end in .txt or .txt.gz, if none is a split."""
    texts = [path for path in sorted(folder.iterdir()) if re.search(r"^[^.].*\.txt(\.gz)?$", path.name.lower())]
    return [] if any(split_of(path.name) for path in texts) else texts


def num_bytes(path: Path) -> int:
    """The bytes of your own text, about: those of a file, of a folder's train file, or of all texts in it."""
    paths = (texts_in(path) or [find_splits(path)["train"]]) if path.is_dir() else [path]
    return sum(map(_num_bytes, paths))


def _num_bytes(path: Path) -> int:
    check_file(path, "a text file")
    with open(path, "rb") as file:
        is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        return file.seek(0, os.SEEK_END) * (PACKED if is_packed else 1)


def split_of(name: str) -> Split | None:
    """The split that a part of a file's name says, between dots, dashes or underscores."""
    return next((_CALLED[part] for part in re.split(r"[._-]", name.lower()) if part in _CALLED), None)


def cut_lines(num_lines: int, valid: float, test: float, name: str) -> dict[Split, tuple[int, int]]:
    """The first line and the one after the last of each split, in the order of `corpus_from_file`."""
    for what, share in (("valid", valid), ("test", test)):
        # Written so that NaN fails too.
        if not 0 <= share < 1:
            raise ValueError(f"{what} must be a share from 0 to below 1, got {share}")
    num_valid, num_test = (max(1, round(num_lines * share)) if share else 0 for share in (valid, test))
    num_train = num_lines - num_valid - num_test
    if num_train < 1:
        raise ValueError(
            f"{name} has {num_lines} lines with words, {num_valid} would go to valid and {num_test} to test, which "
            "leaves none for train; give a longer text, or a folder that holds it as train.txt; in Python, shares of "
            "0 leave valid and test out"
        )
    edges: dict[Split, tuple[int, int]] = {"train": (0, num_train)}
    edges["valid"] = (num_train, num_train + num_valid)
    edges["test"] = (num_train + num_valid, num_lines)
    return {split: (first, end) for split, (first, end) in edges.items() if end > first}


def _check_begins(source: Files) -> None:
    """A wrong name or an empty file shows at once, not after hours of work on the first split."""
    next(source.lines())


def name_of_file(path: Path) -> str:
    """What a corpus is called that lies in a file."""
    return path.name.removesuffix(".gz").removesuffix(".txt")
