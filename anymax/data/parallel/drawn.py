"""Pairs drawn by chance, to see a model learn: a sentence of a few made-up words, and itself or its reverse."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anymax.checks import check_counts

if TYPE_CHECKING:
    from anymax.data.parallel.corpus import ParallelCorpus
    from anymax.data.text.corpus import Split

ONSETS, VOWELS = "bcdfghjklmnprstvwxyz", "aeiou"
MOST_SYMBOLS = len(ONSETS) * len(VOWELS)
DRAWN = ("copy", "reverse")


@dataclass(frozen=True)
class DrawnPairs:
    """How many pairs are drawn, and of what; all sentences differ, so that none of test was seen in train.

    Args:
        pairs: of train.
        held_out: of valid, and of test.
        symbols: different words, at most 100.
        shortest, longest: words of a sentence.
        seed: decides the sentences.

    Example:
        >>> from anymax.data import DrawnPairs, ParallelText
        >>> drawn = DrawnPairs(pairs=10, held_out=2, symbols=5)
        >>> corpus = ParallelText(corpus="reverse", drawn=drawn).open()
        >>> pair = next(corpus.pairs("train"))
        >>> pair.source.split() == pair.target.split()[::-1]
        True
    """

    pairs: int = 4_000
    held_out: int = 200
    symbols: int = 30
    shortest: int = 3
    longest: int = 10
    seed: int = 1

    def __post_init__(self) -> None:
        check_counts(pairs=self.pairs, held_out=self.held_out, symbols=self.symbols, shortest=self.shortest)
        if self.symbols > MOST_SYMBOLS:
            raise ValueError(f"symbols must be at most {MOST_SYMBOLS}, got {self.symbols}")
        if self.longest < self.shortest:
            raise ValueError(f"longest must be at least shortest, {self.shortest}, got {self.longest}")
        # Each length is drawn as often as the others, and the shortest has the fewest sentences.
        wanted, share = self.pairs + 2 * self.held_out, self.longest - self.shortest + 1
        if self.symbols**self.shortest * share < 2 * wanted:
            raise ValueError(
                f"symbols must give twice the {wanted:,} sentences that are drawn, got {self.symbols} and a shortest "
                f"sentence of {self.shortest}; draw fewer, or raise symbols or shortest"
            )

    def toy(self) -> DrawnPairs:
        """As many as a test wants."""
        return DrawnPairs(pairs=200, held_out=20, symbols=12, longest=6, seed=self.seed)

    def open(self, task: str) -> ParallelCorpus:
        """The pairs of "copy" or "reverse"."""
        from anymax.data.parallel.opening import parallel_of_pairs

        pairs = [(" ".join(words), " ".join(words if task == "copy" else words[::-1])) for words in self._sentences()]
        # The first are held out, so that more pairs of train leave them as they are.
        valid, test = self.held_out, 2 * self.held_out
        splits: dict[Split, list[tuple[str, str]]] = {"train": pairs[test:], "valid": pairs[:valid]}
        splits["test"] = pairs[valid:test]
        return parallel_of_pairs(task, splits, splitting="spaces")

    def _sentences(self) -> list[tuple[str, ...]]:
        draw = random.Random(self.seed).random
        words = [onset + vowel for vowel in VOWELS for onset in ONSETS][: self.symbols]
        # In the order they were drawn, each once.
        sentences: dict[tuple[str, ...], None] = {}
        while len(sentences) < self.pairs + 2 * self.held_out:
            length = self.shortest + int(draw() * (self.longest - self.shortest + 1))
            sentences[tuple(words[int(draw() * self.symbols)] for _ in range(length))] = None
        return list(sentences)
