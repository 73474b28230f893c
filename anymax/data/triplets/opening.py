"""Ways to triplets: files with a line for each part, and more of them for the training alone.

A triplet is a pair here, so that what is known of pairs holds: its source is the sentence, a tab and the translation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from anymax.data.parallel.corpus import ParallelCorpus
from anymax.data.parallel.opening import language_of
from anymax.data.parallel.pairs import Pair, PairSource
from anymax.data.text.corpus import Files, PathLike, Split, find_splits, split_of
from anymax.data.text.lines import open_lines

# What files of a triplet end in: the sentence, its translation, the correction.
SIDES = ("src", "mt", "pe")
NAMES = ("sentence", "translation", "correction")
TAB = "\t"


class Triplet(NamedTuple):
    """A sentence, its machine translation, and that corrected."""

    source: str
    translation: str
    correction: str


@dataclass(frozen=True)
class TripletFiles:
    """Line by line out of three files, which must have as many lines as each other.

    A line without words in any of the three is left out; one in which some part has words and another none is an error.

    Args:
        paths: of sentences, translations and corrections.
        drop_empty: leave out triplets of which a part is empty.
        chosen: the lines that are taken, from 0; None for all.
        cut: a name for what was chosen.
    """

    paths: tuple[Path, Path, Path]
    encoding: str = "utf-8"
    drop_empty: bool = False
    chosen: frozenset[int] | None = None
    cut: str = ""

    def pairs(self) -> Iterator[Pair]:
        files = [open_lines(path, encoding=self.encoding) for path in self.paths]
        for number, parts in enumerate(zip_longest(*files)):
            if any(part is None for part in parts):
                raise ValueError(self._why_uneven(number, parts, files))
            if self.chosen is not None and number not in self.chosen:
                continue
            source, translation, correction = (" ".join(part.split()) for part in parts)
            full = [bool(part) for part in (source, translation, correction)]
            if all(full):
                yield Pair(f"{source}{TAB}{translation}", correction, number + 1, number + 1)
            elif not any(full) or self.drop_empty:
                yield Pair("", "", number + 1, number + 1)
            else:
                empty = full.index(False)
                raise ValueError(
                    f"{self.paths[empty]} line {number + 1} must hold the {NAMES[empty]} of a triplet, got an empty "
                    "line; mend the text, or leave such triplets out with drop_empty=True (--data.drop-empty)"
                )

    def places(self, pair: Pair) -> tuple[str, str]:
        return f"{self.paths[0]} and {self.paths[1].name} line {pair.source_line}", (
            f"{self.paths[2]} line {pair.target_line}"
        )

    def place(self) -> str:
        # What is left out is blank in pairs, and not seen by what counts them.
        return "\n".join([*(str(path.resolve()) for path in self.paths), self.cut, str(self.drop_empty)])

    def fingerprint(self) -> str:
        return Files(self.paths, self.encoding).fingerprint()

    def _why_uneven(self, number: int, parts: Sequence[str | None], files: Sequence[Iterator[str]]) -> str:
        lengths = [number + (part is not None) + sum(1 for _ in rest) for part, rest in zip(parts, files, strict=True)]
        named = ", ".join(f"{path.name} {length:,}" for path, length in zip(self.paths, lengths, strict=True))
        return (
            f"the files of triplets in {self.paths[0].parent} must have as many lines as each other, got {named}; "
            "find the line that was lost or added, or check that they are of one text"
        )


@dataclass(frozen=True)
class Chained:
    """The pairs of several sources one after the other, numbered through."""

    parts: tuple[PairSource, ...]

    def pairs(self) -> Iterator[Pair]:
        number = 0
        for part in self.parts:
            for pair in part.pairs():
                number += 1
                yield pair._replace(source_line=number, target_line=number)

    def places(self, pair: Pair) -> tuple[str, str]:
        number = 0
        for part in self.parts:
            for own in part.pairs():
                number += 1
                if number == pair.source_line:
                    return part.places(own)
        raise ValueError(f"pair must be one of the sources, got number {pair.source_line} of {number}")

    def place(self) -> str:
        return "\n\n".join(part.place() for part in self.parts)

    def fingerprint(self) -> str:
        return " ".join(part.fingerprint() for part in self.parts)


def triplets_in_folder(
    folder: PathLike,
    *,
    held_out: int,
    seed: int,
    train_share: float = 1.0,
    test_set: str | None = None,
    encoding: str = "utf-8",
    drop_empty: bool = False,
) -> ParallelCorpus:
    """The triplets of a folder, whose files are named for their split and end in .src, .mt and .pe, or those and .gz.

    Args:
        held_out: how many triplets of train become valid, and how many test, where there are files of train alone.
        seed: decides which.
        train_share: the share of train that is read, drawn by the seed.
        test_set: a part of the names of the files of test, where there are several.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; check the name, or bring the triplets there")
    files = [path for path in sorted(folder.iterdir()) if not path.is_dir() and not path.name.startswith(".")]
    missing = [side for side in SIDES if not any(language_of(path) == side for path in files)]
    if missing:
        raise ValueError(
            f"{folder} must have files that end in {', '.join(f'.{side}' for side in SIDES)}, such as train.src, but "
            f"none ends in .{missing[0]}; add it"
        )
    wanted = [path for path in files if split_of(path.name) != "test" or test_set is None or test_set in path.name]
    found = [find_splits(folder, [path for path in wanted if language_of(path) == side]) for side in SIDES]
    for side, splits in zip(SIDES, found, strict=True):
        if splits.keys() != found[0].keys():
            raise ValueError(
                f"{folder} must have the same splits for all three parts, got {', '.join(found[0])} in "
                f".{SIDES[0]} and {', '.join(splits)} in .{side}; add those that are missing"
            )
    if test_set is not None and "test" not in found[0]:
        raise ValueError(
            f"{folder} must have test files with {test_set!r} in their names, got none; leave test_set out"
        )
    sources: dict[Split, PairSource] = {}
    for split in found[0]:
        paths = found[0][split], found[1][split], found[2][split]
        sources[split] = TripletFiles(paths, encoding, drop_empty)
    train = sources["train"]
    if len(sources) == 1 and isinstance(train, TripletFiles):
        sources = _cut(train, held_out, seed)
    if train_share < 1:
        train = sources["train"]
        assert isinstance(train, TripletFiles)
        sources["train"] = _part(train, train_share, seed)
    for source in sources.values():
        # A wrong name or an empty file shows at once.
        next(source.pairs(), None)
    return ParallelCorpus(folder.resolve().name, ("source", "correction"), sources, "spaces", drop_empty)


def with_further(own: ParallelCorpus, folders: Sequence[Path], *, encoding: str, drop_empty: bool) -> ParallelCorpus:
    """A corpus whose train is followed by that of further folders."""
    if not folders:
        return own
    parts = [own.source("train")]
    for folder in folders:
        found = find_splits(folder, [path for path in sorted(folder.iterdir()) if language_of(path) == SIDES[0]])
        name = found["train"].name
        paths = [found["train"].with_name(name.replace(f".{SIDES[0]}", f".{side}")) for side in SIDES]
        parts.append(TripletFiles((paths[0], paths[1], paths[2]), encoding, drop_empty))
    name = "-".join([own.name, *(folder.resolve().name for folder in folders)])
    return replace(own, name=name, sources={**own.sources, "train": Chained(tuple(parts))})


def triplet_of(pair_source: str, correction: str) -> Triplet:
    """The triplet that a pair of texts holds."""
    source, _, translation = pair_source.partition(TAB)
    return Triplet(source, translation, correction)


def _cut(train: TripletFiles, held_out: int, seed: int) -> dict[Split, PairSource]:
    """Valid and test drawn out of train, which keeps the rest."""
    number = sum(1 for _ in train.pairs())
    if number <= 2 * held_out:
        raise ValueError(
            f"{train.paths[0]} has {number:,} triplets, of which {held_out:,} would go to valid and as many to test; "
            "lower held_out (--data.held-out), or give files for valid and test"
        )
    drawn = random.Random(seed).sample(range(number), 2 * held_out)
    parts: dict[Split, frozenset[int]] = {"train": frozenset(range(number)) - frozenset(drawn)}
    parts["valid"], parts["test"] = frozenset(drawn[:held_out]), frozenset(drawn[held_out:])
    cut = f"{held_out} held out by seed {seed}"
    return {split: replace(train, chosen=chosen, cut=f"{split}, {cut}") for split, chosen in parts.items()}


def _part(train: TripletFiles, share: float, seed: int) -> TripletFiles:
    """A share of train, each smaller one of the same seed within the larger ones."""
    lines = sorted(range(sum(1 for _ in train.pairs())) if train.chosen is None else train.chosen)
    random.Random(seed).shuffle(lines)
    chosen = frozenset(lines[: max(1, round(share * len(lines)))])
    return replace(train, chosen=chosen, cut=f"{train.cut}, {share:g} of it by seed {seed}")
