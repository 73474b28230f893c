"""Which texts one model learns from, in which shares, and in which word pieces, as plain data that imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anymax.checks import check_counts, given
from anymax.data.text.corpus import Corpus, name_of_file
from anymax.data.text.named import NAMED, open_corpus
from anymax.data.units.word_pieces import PieceSplitting

# Enough for a test: two pieces for each character of the toy text, and some.
TOY_SIZE = 600


@dataclass(frozen=True)
class Pieces:
    """Word pieces, learned from the training texts.

    Args:
        size: the most pieces, special words included.
        min_count: the least times that two neighbours must be seen to become one.
        most_characters: how many characters are kept, the most frequent of all texts; words with others are "[UNK]".
            By default all are.
        splitting: "bert" separates punctuation and Chinese characters, as BERT's own tokenizer; "spaces" is for texts
            that are tokenized already.
        lowercase: whether "bert" makes letters small and takes accents off.
        vocabulary: a tokenizer.json, a vocab.txt, or a folder with one, to use instead of learning pieces; the others
            are then ignored, as the file says how lines become words.

    Example:
        >>> from anymax.data import MultilingualText, Pieces
        >>> MultilingualText(corpora=("pydoc",), pieces=Pieces(size=2000, lowercase=True)).pieces.size
        2000
    """

    size: int = 30_000
    min_count: int = 2
    most_characters: int | None = None
    splitting: PieceSplitting = "bert"
    lowercase: bool = False
    vocabulary: Path | None = None

    def __post_init__(self) -> None:
        check_counts(size=self.size, min_count=self.min_count, **given(most_characters=self.most_characters))

    def toy(self) -> Pieces:
        """As many as a test wants."""
        return Pieces(TOY_SIZE, splitting=self.splitting, lowercase=self.lowercase)


@dataclass(frozen=True)
class MultilingualText:
    """What to read: texts of one or several languages, and how much of the training each is.

    Args:
        corpora: names of corpora: wikitext-2, wikitext-103, ptb, lm1b, sotu or pydoc.
        paths: your own texts instead, one for each language: files, which are cut into splits, or folders with a file
            for each.
        languages: the names of the texts, in metrics and tables; by default those of the corpora or files.
        shares: how much of every epoch is drawn from each text; they are made to sum to one. By default all are equal.
        root: the folder that holds the folders of named corpora; by default the environment variable ANYMAX_DATA.
        encoding: how the characters of your own texts are written, such as latin-1.
        pieces: the word pieces, for all texts together.

    Example:
        >>> from anymax.data import MultilingualText
        >>> config = MultilingualText(corpora=("pydoc", "sotu"), languages=("code", "speech"), shares=(1, 3))
        >>> dict(zip(config.names, config.normal_shares))
        {'code': 0.25, 'speech': 0.75}
    """

    corpora: tuple[str, ...] = ("sotu",)
    paths: tuple[Path, ...] = ()
    languages: tuple[str, ...] | None = None
    shares: tuple[float, ...] | None = None
    root: Path | None = None
    encoding: str = "utf-8"
    pieces: Pieces = field(default_factory=Pieces)

    def __post_init__(self) -> None:
        texts = self.paths or self.corpora
        if not texts:
            raise ValueError("corpora or paths must name at least one text, got none")
        unknown = [name for name in self.corpora if name not in NAMED]
        if unknown and not self.paths:
            raise ValueError(
                f"corpora must be of {', '.join(NAMED)}, got {', '.join(map(repr, unknown))}; give your own texts as "
                "paths"
            )
        if self.paths and self.root is not None:
            raise ValueError("root is for named corpora, got it with paths; leave one of them out")
        for name, values in (("languages", self.languages), ("shares", self.shares)):
            if values is not None and len(values) != len(texts):
                raise ValueError(
                    f"{name} must have one entry for each of the {len(texts)} texts, got {len(values)}: {values}"
                )
        self._check_names()
        # Written so that NaN fails too.
        if self.shares is not None and not all(0 < share < math.inf for share in self.shares):
            raise ValueError(f"shares must be above 0 and finite, got {self.shares}; leave out texts of no share")

    @property
    def names(self) -> tuple[str, ...]:
        """What each text is called."""
        if self.languages is not None:
            return self.languages
        return tuple(name_of_file(path) for path in self.paths) or self.corpora

    @property
    def normal_shares(self) -> tuple[float, ...]:
        """The share of each text; they sum to one."""
        shares: Sequence[float] = self.shares or [1.0] * len(self.names)
        total = math.fsum(shares)
        return tuple(share / total for share in shares)

    @property
    def sets(self) -> tuple[str, ...]:
        """The named sets that are read, where they are not in every Python."""
        return () if self.paths else tuple(name for name in self.corpora if name != "pydoc")

    def open(self) -> dict[str, Corpus]:
        """The texts by their names; nothing is read but the first lines, and single files once to cut them."""
        texts: Sequence[str | Path] = self.paths or self.corpora
        return {
            name: open_corpus(which, root=self.root, encoding=self.encoding)
            for name, which in zip(self.names, texts, strict=True)
        }

    def toy(self) -> MultilingualText:
        """The same at a size for tests: each text becomes one that is in every Python."""
        return MultilingualText(
            corpora=("pydoc",) * len(self.names), languages=self.names, shares=self.shares, pieces=self.pieces.toy()
        )

    def _check_names(self) -> None:
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise ValueError(
                f"languages must differ from each other, but {twice[0]!r} is there twice; name them by languages"
            )
        for name in self.names:
            if not name or "/" in name or any(character.isspace() for character in name):
                raise ValueError(f"languages must be names without spaces and slashes, got {name!r}; name the texts")
