"""Triplets drawn by chance, to see a model learn: made-up sentences, a translation with mistakes, and one without."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anymax.checks import check_counts, check_shares
from anymax.data.parallel.drawn import DrawnPairs

if TYPE_CHECKING:
    from anymax.data.parallel.corpus import ParallelCorpus
    from anymax.data.text.corpus import Split


@dataclass(frozen=True)
class DrawnTriplets:
    """How many triplets are drawn, and of what.

    A word is translated by itself read backwards; a mistake puts another word in its place.

    Args:
        pairs: of sentences and their right translations.
        mistakes: the share of the words of a translation that are wrong.

    Example:
        >>> from anymax.data import DrawnPairs, DrawnTriplets, Triplets, prepare_triplets
        >>> drawn = DrawnTriplets(DrawnPairs(pairs=20, held_out=3, symbols=5), mistakes=0.0)
        >>> prepared = prepare_triplets(Triplets("drawn", drawn=drawn), cache="cache")
        >>> all(triplet.translation == triplet.correction for triplet in prepared.triplets("test"))
        True
    """

    pairs: DrawnPairs = field(default_factory=DrawnPairs)
    mistakes: float = 0.2

    def __post_init__(self) -> None:
        check_shares(mistakes=self.mistakes)
        check_counts(2, symbols=self.pairs.symbols)

    def toy(self) -> DrawnTriplets:
        """As many as a test wants."""
        return DrawnTriplets(self.pairs.toy(), self.mistakes)

    def open(self) -> ParallelCorpus:
        """The triplets, each a pair of the sentence, a tab and its translation, and the right translation."""
        from anymax.data.parallel.opening import parallel_of_pairs

        drawn = self.pairs.open("copy")
        splits: dict[Split, list[tuple[str, str]]] = {}
        for split in drawn.sources:
            sentences = [source.split() for source in drawn.lines(split).sources]
            words, draw = sorted({word[::-1] for words in sentences for word in words}), random.Random(split).random
            splits[split] = []
            for sentence in sentences:
                right = [word[::-1] for word in sentence]
                wrong = [words[int(draw() * len(words))] if draw() < self.mistakes else word for word in right]
                splits[split].append((f"{' '.join(sentence)}\t{' '.join(wrong)}", " ".join(right)))
        return parallel_of_pairs("drawn", splits, splitting="spaces")
