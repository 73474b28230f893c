"""ParallelCorpus: pairs of sentences in up to three splits, checked line by line, and each side as a corpus."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from anymax.data.parallel.pairs import Languages, Pair, PairSource
from anymax.data.prepared.cache import digest, kept, plain_name
from anymax.data.text.corpus import Corpus, PathLike, Source, Split
from anymax.data.text.words import Splitting
from anymax.data.units.lexicon import EOS
from anymax.files import read_json, replacing

Side = Literal["source", "target"]


class Lines(NamedTuple):
    """A split as text, for scoring."""

    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class Counted:
    """How many pairs a split has.

    Args:
        pairs: those with words on both sides.
        blank: lines without words on both sides, which are left out.
        one_sided: pairs with words on one side only, which are left out.
    """

    pairs: int
    blank: int
    one_sided: int

    def save(self, path: PathLike) -> None:
        """Write them as JSON."""
        with replacing(path) as file:
            file.write(json.dumps(asdict(self)).encode() + b"\n")

    @classmethod
    def load(cls, path: PathLike) -> "Counted":
        """Read what `save` wrote."""
        values = read_json(Path(path))
        if values.keys() != {"pairs", "blank", "one_sided"} or not all(type(value) is int for value in values.values()):
            raise ValueError(f"{path} was changed since it was written; delete it")
        return cls(**values)


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentences and their translations.

    Args:
        name: what it is called in messages and file names.
        languages: those of source and target.
        sources: the pairs of each split there is.
        splitting: how a line becomes words, see `split_line`.
        drop_empty: leave out pairs with words on one side only; otherwise they are an error.

    Example:
        >>> from anymax.data import parallel_of_pairs
        >>> corpus = parallel_of_pairs("tiny", {"train": [("der Hund", "the dog")]}, ("de", "en"))
        >>> corpus.lines("train").references
        ['the dog']
        >>> next(corpus.side("source").sentences("train"))
        ['▁der', '▁Hund']
    """

    name: str
    languages: Languages
    sources: Mapping[Split, PairSource]
    splitting: Splitting = "marked"
    drop_empty: bool = False

    def source(self, split: Split) -> PairSource:
        """The pairs of a split as they stand in their files."""
        if split not in get_args(Split):
            raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
        if split not in self.sources:
            raise ValueError(f"{self.name} has no {split} split, only {', '.join(self.sources)}; give it a file")
        return self.sources[split]

    def pairs(self, split: Split) -> Iterator[Pair]:
        """The pairs of a split that have words on both sides."""
        source = self.source(split)
        return (pair for pair in source.pairs() if self._has_words(source, pair) == (True, True))

    def lines(self, split: Split) -> Lines:
        """The sentences of a split and their translations as text."""
        pairs = list(self.pairs(split))
        return Lines([pair.source for pair in pairs], [pair.target for pair in pairs])

    def places(self, split: Split, number: int) -> tuple[str, str]:
        """Where both sides of a pair of `pairs` stand, for messages; found by reading the split anew."""
        return next(self.source(split).places(pair) for at, pair in enumerate(self.pairs(split)) if at == number)

    def count(self, split: Split, *, cache: Path) -> Counted:
        """Check every pair of a split and count them, once for each text; what does not pair is an error."""
        source = self.source(split)
        what = digest(source.place(), source.fingerprint(), self.splitting, self.drop_empty)
        return kept(cache / f"{plain_name(self.name)}-pairs-{what}.json", Counted.load, lambda: self._count(source))

    def side(self, side: Side) -> Corpus:
        """One side as a corpus, with a line for every pair of `pairs`."""
        language = self.languages[side == "target"]
        sources: dict[Split, Source] = {split: _Side(self, split, side) for split in self.sources}
        return Corpus(f"{self.name}-{language}", sources, self.splitting)

    def _count(self, source: PairSource) -> Counted:
        pairs = blank = one_sided = 0
        for pair in source.pairs():
            has_source, has_target = self._has_words(source, pair)
            pairs += has_source and has_target
            blank += not (has_source or has_target)
            one_sided += has_source != has_target
        if not pairs:
            raise ValueError(f"{source.place()} must hold at least one pair with words on both sides, got none")
        return Counted(pairs, blank, one_sided)

    def _has_words(self, source: PairSource, pair: Pair) -> tuple[bool, bool]:
        has_source, has_target = bool(pair.source.strip()), bool(pair.target.strip())
        if has_source != has_target and not self.drop_empty:
            full, empty = source.places(pair) if has_source else reversed(source.places(pair))
            raise ValueError(
                f"{empty} must hold the translation of {full}, got an empty line; mend the text, or leave such pairs "
                "out with drop_empty=True (--data.drop-empty)"
            )
        # The word ends a sentence in the ids, where it would part a pair from its partner.
        if self.splitting == "spaces" and EOS in f"{pair.source} {pair.target}":
            for text, place in zip((pair.source, pair.target), source.places(pair), strict=True):
                if EOS in text.split():
                    raise ValueError(f"{place} must not hold the word {EOS}, which ends every sentence; take it out")
        return has_source, has_target


@dataclass(frozen=True)
class _Side:
    """The lines of one side of a split."""

    corpus: ParallelCorpus
    split: Split
    side: Side

    def lines(self) -> Iterator[str]:
        is_source = self.side == "source"
        return (pair.source if is_source else pair.target for pair in self.corpus.pairs(self.split))

    def place(self) -> str:
        return f"{self.corpus.source(self.split).place()}\n{self.side} {self.corpus.drop_empty}"

    def fingerprint(self) -> str:
        return self.corpus.source(self.split).fingerprint()
