"""Units: what the ids of a model stand for, words or subwords, and the way from text to ids and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain

from anymax.data.text.words import Splitting, join_words, split_line
from anymax.data.units.lexicon import EOS, Ids, Lexicon
from anymax.data.units.subwords import Subwords

# How many words keep their ids at hand where they are cut into subwords; the frequent ones stay.
REMEMBERED = 1 << 17
# Characters of such a word; long ones are rare, and would take memory.
MOST_REMEMBERED = 100


@dataclass(frozen=True)
class Units:
    """What a model reads and predicts.

    Args:
        lexicon: of the units.
        words: of the words, with their counts in the training text; the same object where units are words.
        subwords: how words are cut into subwords; None where units are words.
        splitting: how a line becomes words, see `split_line`.

    Example:
        >>> from anymax.data import Lexicon, Units
        >>> lexicon = Lexicon.from_counts({"the": 5, "cat": 2, "sat": 1})
        >>> units = Units(lexicon, lexicon)
        >>> units.encode_line("the cat sat")
        [2, 3, 4]
        >>> units.text([2, 3, 4])
        'the cat sat'
    """

    lexicon: Lexicon
    words: Lexicon = field(repr=False)
    subwords: Subwords | None = None
    splitting: Splitting = "spaces"

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of words. A word that is not known gets the id of "<unk>", once for the whole word."""
        if self.subwords is None:
            return self.lexicon.encode(words)
        return list(chain.from_iterable(map(self._ids_of_word, words)))

    def encode_line(self, line: str) -> list[int]:
        """The ids of a line of text, such as one to continue; without "<eos>"."""
        return self.encode(split_line(line, self.splitting))

    def decode(self, ids: Iterable[int] | Ids) -> list[str]:
        """The words of ids; where subwords end amid a word, what there is of it is the last."""
        units = self.lexicon.decode(ids)
        return units if self.subwords is None else self.subwords.join(units)

    def text(self, ids: Iterable[int] | Ids, *, after: Iterable[str] = ()) -> str:
        """Ids as text to read, a line for each "<eos>".

        Args:
            after: words that they continue, which stand before them as they are.
        """
        lines: list[list[str]] = [[*after]]
        for word in self.decode(ids):
            if word == EOS:
                lines.append([])
            else:
                lines[-1].append(word)
        return "\n".join(join_words(line, self.splitting) for line in lines)

    @cached_property
    def ends_word(self) -> bytes:
        """For each id 1 where the unit completes a word, else 0. Each word of a text has one such unit, its last."""
        if self.subwords is None:
            return b"\1" * len(self.lexicon)
        return bytes(self.subwords.ends_word(unit) for unit in self.lexicon.words)

    @cached_property
    def hash(self) -> str:
        """The sha256 of all that decides ids, in hexadecimal digits; that of the lexicon where units are words."""
        if self.subwords is None:
            return self.lexicon.hash
        return hashlib.sha256(f"{self.lexicon.hash} {self.subwords.hash}".encode()).hexdigest()

    @cached_property
    def _ids_of_word(self) -> Callable[[str], tuple[int, ...]]:
        assert self.subwords is not None
        split, encode = self.subwords.split, self.lexicon.encode

        def ids(word: str) -> tuple[int, ...]:
            return tuple(encode(split(word)))

        remembered = lru_cache(REMEMBERED)(ids)
        return lambda word: remembered(word) if len(word) <= MOST_REMEMBERED else ids(word)
