"""Prepared parallel text: pairs as ids, and the units of both sides; made once, and for a run always the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anymax.data.parallel.config import ParallelText
from anymax.data.parallel.corpus import Counted, Lines, ParallelCorpus
from anymax.data.parallel.encoded import EncodedPairs
from anymax.data.prepared.cache import default_cache
from anymax.data.prepared.prepared import Announce, encode_split, make_units, throttled, units_of_words
from anymax.data.prepared.saved import (
    DATA_FILE,
    check_identity,
    hashes_of,
    load_units,
    read_data,
    save_units,
    write_data,
)
from anymax.data.text.config import BPE, Words
from anymax.data.text.corpus import Corpus, Split
from anymax.data.text.words import SPACE
from anymax.data.units.counting import lexicon_of_words
from anymax.data.units.lexicon import Lexicon
from anymax.data.units.units import Units

SOURCE_FOLDER, TARGET_FOLDER = "source", "target"


@dataclass(frozen=True)
class PreparedPairs:
    """Pairs of texts as ids, in whatever units.

    Args:
        corpus: the text.
        splits: the ids of each split there is.
        counted: the pairs of each split, and those left out as one side or both have no words.
        limits: the most units of a sentence of source and target; longer pairs of train are left out.
    """

    corpus: ParallelCorpus
    splits: Mapping[Split, EncodedPairs]
    counted: Mapping[Split, Counted]
    limits: tuple[int | None, int | None]

    @property
    def name(self) -> str:
        """What the corpus is called."""
        return self.corpus.name

    def split(self, split: Split) -> EncodedPairs:
        """The ids of a split; a corpus without it is an error."""
        # The corpus knows which there are, and says so.
        self.corpus.source(split)
        return self.splits[split]

    def identity_of_texts(self) -> dict[str, str]:
        """Hashes of the ids of each split, and the limits."""
        texts = {f"{split} source": pairs.source_file.tokens_hash for split, pairs in self.splits.items()}
        texts |= {f"{split} target": pairs.target_file.tokens_hash for split, pairs in self.splits.items()}
        return {**texts, "limits": " ".join(map(str, self.limits))}


@dataclass(frozen=True)
class PreparedParallel(PreparedPairs):
    """Parallel text as ids.

    Args:
        corpus: the text.
        splits: the ids of each split there is.
        counted: how many pairs each split has, and how many were left out as blank or one-sided.
        limits: the most units of a source and of a target in train; None where there is no limit.
        source_units, target_units: what the ids stand for; the same object where units are joint.

    Example:
        >>> from anymax.data import ParallelText, prepare_parallel
        >>> prepared = prepare_parallel(ParallelText("copy").toy(), cache="cache")
        >>> prepared.is_joint, prepared.dropped["train"]
        (True, {'blank': 0, 'one-sided': 0, 'long': 0})
    """

    source_units: Units
    target_units: Units

    @property
    def is_joint(self) -> bool:
        """Whether both sides have the same units."""
        return self.source_units is self.target_units

    @property
    def dropped(self) -> dict[Split, dict[str, int]]:
        """How many pairs of each split were left out, by the reason: blank, one-sided or long."""
        return {split: self._dropped(self.counted[split], self.splits[split]) for split in self.corpus.sources}

    @staticmethod
    def _dropped(counted: Counted, pairs: EncodedPairs) -> dict[str, int]:
        return {"blank": counted.blank, "one-sided": counted.one_sided, "long": counted.pairs - len(pairs)}

    def lines(self, split: Split) -> Lines:
        """The sentences and translations of a split as text; of valid and test, those of `split` one for one."""
        return self.corpus.lines(split)

    def check_lengths(self, split: Split, *, most_source: int | None = None, most_target: int | None = None) -> None:
        """Refuse a split with a longer sentence than a model can read or predict; the error says where it stands.

        Args:
            most_source, most_target: the positions of the model, "<eos>" counted.
        """
        pairs = self.split(split)
        sides = ((pairs.source_lengths, most_source), (pairs.target_lengths, most_target))
        for side, (lengths, most) in enumerate(sides):
            if most is not None and int(lengths.max()) > most:
                longest = int(lengths.argmax())
                place = self.corpus.places(split, int(pairs.numbers[longest]))[side]
                raise ValueError(
                    f"{place} has {int(lengths[longest])} units with its <eos>, and the model has {most} positions; "
                    "give the model more, shorten the sentence, or leave long pairs out of train with most_source and "
                    "most_target"
                )

    def identity(self) -> dict[str, str]:
        """Hashes of the units and of the ids of each split, and the limits: what a run depends on."""
        sides = {"source": self.source_units, "target": self.target_units}
        units = {f"{side} {what}": hash for side, units in sides.items() for what, hash in hashes_of(units).items()}
        return {**units, **self.identity_of_texts()}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the units, and the identity to compare with; the text stays where it is.

        Joint units lie in the folder, others in its folders `source` and `target`.
        """
        folder = Path(folder)
        if self.is_joint:
            save_units(self.source_units, folder)
        else:
            save_units(self.source_units, folder / SOURCE_FOLDER)
            save_units(self.target_units, folder / TARGET_FOLDER)
        values = {
            "name": self.name,
            "splitting": self.corpus.splitting,
            "languages": self.corpus.languages,
            "joint": self.is_joint,
            "identity": self.identity(),
        }
        write_data(folder, values)

    @staticmethod
    def saved_units(folder: str | os.PathLike[str]) -> tuple[Units, Units] | None:
        """The units of source and target that `save` wrote into a folder, or None where it holds none."""
        folder = Path(folder)
        if not (folder / DATA_FILE).exists():
            return None
        values = read_data(folder)
        splitting, identity = values["splitting"], values["identity"]
        if type(values.get("joint")) is not bool:
            raise ValueError(
                f"{folder / DATA_FILE} must be of parallel text, got one of another text; name another run"
            )
        hashes = {
            side: {
                what.removeprefix(f"{side} "): hash for what, hash in identity.items() if what.startswith(f"{side} ")
            }
            for side in (SOURCE_FOLDER, TARGET_FOLDER)
        }
        if values["joint"]:
            units = load_units(folder, splitting, hashes[SOURCE_FOLDER])
            return units, units
        source, target = (load_units(folder / side, splitting, hashes[side]) for side in hashes)
        return source, target

    def check_unchanged(self, folder: str | os.PathLike[str]) -> None:
        """Refuse a text, units or limits other than those that were saved into a folder."""
        check_identity(self.identity(), Path(folder))


def prepare_parallel(
    config: ParallelText,
    *,
    units: tuple[Units, Units] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> PreparedParallel:
    r"""Check every pair of a text, make its units, and encode both sides; what was done before is found in the cache.

    All splits are checked before anything else is done. Units and their counts are of all pairs of train. Pairs that
    are too long are left out of train alone, and stay in valid and test, so that scores compare.

    Args:
        config: what to read, and the units to make.
        units: use these for source and target, such as the saved ones of a run.
        cache: the folder for counts, units and encoded files; by default `default_cache()`.
        progress: called with a line that says what is being done or left out.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import ParallelText, Words, prepare_parallel
        >>> _ = Path("pairs.tsv").write_text("der Hund bellt\tthe dog barks\n" * 20)
        >>> prepared = prepare_parallel(ParallelText(path=Path("pairs.tsv"), units=Words()), cache="cache")
        >>> prepared.target_units.lexicon.words
        ('<eos>', '<unk>', '▁Hund', '▁barks', '▁bellt', '▁der', '▁dog', '▁the')
        >>> prepared.split("train").target(0)
        tensor([7, 6, 3, 0])
    """
    corpus = config.open(progress=progress)
    folder = Path(default_cache() if cache is None else cache)
    # The train split last: it is the largest.
    counted = {split: corpus.count(split, cache=folder) for split in reversed(list(corpus.sources))}
    sides = corpus.side("source"), corpus.side("target")
    source_units, target_units = units or make_parallel_units(config, corpus, cache=folder, progress=progress)
    limits = config.most_source, config.most_target
    splits: dict[Split, EncodedPairs] = {}
    for split in corpus.sources:
        files = [
            encode_split(side, split, side_units, cache=folder, progress=progress)
            for side, side_units in zip(sides, (source_units, target_units), strict=True)
        ]
        splits[split] = EncodedPairs.of(
            *files,
            source_eos=source_units.lexicon.eos,
            target_eos=target_units.lexicon.eos,
            most_source=limits[0],
            most_target=limits[1],
            drop_long=split == "train",
        )
        if progress is not None:
            progress(report(f"{corpus.name} {split}", splits[split], counted[split], limits))
    if not len(splits["train"]):
        raise ValueError(
            f"most_source and most_target must leave some pair of {corpus.name} train, got {limits[0]} and "
            f"{limits[1]}, which leave out all {counted['train'].pairs:,}; raise them"
        )
    return PreparedParallel(corpus, splits, counted, limits, source_units, target_units)


def reopen_parallel(
    config: ParallelText,
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> PreparedParallel:
    """The text of a run, with the units that lie in its folder; a text that was changed since is refused.

    Args:
        config: what was prepared.
        folder: that of the run, or another that `save` wrote to.
        cache, progress: as in `prepare_parallel`.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import ParallelText, prepare_parallel, reopen_parallel
        >>> text = ParallelText("copy").toy()
        >>> prepared = prepare_parallel(text, cache="cache")
        >>> Path("run").mkdir()
        >>> prepared.save("run")
        >>> reopen_parallel(text, "run", cache="cache").identity() == prepared.identity()
        True
    """
    units = PreparedParallel.saved_units(folder)
    if units is None:
        raise ValueError(f"{folder} holds no {DATA_FILE}, so no text was prepared there; give the folder of a run")
    prepared = prepare_parallel(config, units=units, cache=cache, progress=progress)
    prepared.check_unchanged(folder)
    return prepared


def make_parallel_units(
    config: ParallelText, corpus: ParallelCorpus, *, cache: Path, progress: Announce | None = None
) -> tuple[Units, Units]:
    """The units of source and target, made of the training text or found in the cache."""
    source, target = corpus.side("source"), corpus.side("target")
    if not config.joint:
        made = [
            make_units(side, which, cache=cache, progress=progress)
            for side, which in ((source, config.units), (target, config.target_units or config.units))
        ]
        _check_marks(made[0], config.units)
        _check_marks(made[1], config.target_units or config.units)
        return made[0], made[1]
    counts = Counter[str]()
    for side in (source, target):
        words = _counted_words(side, cache, progress)
        counts.update(dict(zip(words.words, words.counts, strict=True)))
    name = f"{corpus.name}-{'-'.join(corpus.languages)}"
    words = Lexicon.from_counts(counts)
    units = units_of_words(words, config.units, name, corpus.splitting, cache=cache, progress=progress)
    _check_marks(units, config.units)
    return units, units


def num_target_words(config: ParallelText, *, progress: Announce | None = None) -> int:
    """How many words the translations of train have, "<eos>" at the end of each counted."""
    side = config.open(progress=progress).side("target")
    return sum(_counted_words(side, default_cache(), progress).counts)


def _counted_words(side: Corpus, cache: Path, progress: Announce | None) -> Lexicon:
    return lexicon_of_words(side, cache=cache, progress=throttled(progress, f"counting the words of {side.name}"))


def _check_marks(units: Units, which: Words | BPE) -> None:
    """A tokenizer of unmarked words would make almost every marked one "<unk>"."""
    if isinstance(which, BPE) and which.tokenizer is not None and units.splitting == "marked":
        assert units.subwords is not None
        if SPACE not in units.subwords.vocabulary:
            raise ValueError(
                f"{which.tokenizer} must hold the character {SPACE!r}, with which words begin that follow a space, but "
                "it does not; learn the subwords from this text, or set splitting to what they were learned from, "
                "spaces or prose"
            )


def report(what: str, pairs: EncodedPairs, counted: Counted, limits: tuple[int | None, int | None]) -> str:
    """How many pairs a split has, and how many were left out and why, in a line."""
    long = f"{pairs.num_long:,} longer than {limits[0]} or {limits[1]} units"
    reasons = {
        f"{counted.blank:,} blank": counted.blank,
        f"{counted.one_sided:,} empty on one side": counted.one_sided,
        long: counted.pairs - len(pairs),
    }
    left_out = ", ".join(reason for reason, number in reasons.items() if number)
    kept = f"; {long} are kept" if pairs.num_long and not reasons[long] else ""
    return f"{what}: {len(pairs):,} pairs" + (f"; left out {left_out}" if left_out else "") + kept
