"""Prepared triplets: sentences, translations and corrections as ids of word pieces, and for a run always the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from anymax.data.multilingual.prepared import count_words, learn_pieces
from anymax.data.parallel.corpus import ParallelCorpus
from anymax.data.parallel.encoded import EncodedPairs
from anymax.data.parallel.prepared import PreparedPairs, report
from anymax.data.prepared.cache import default_cache, digest, plain_name
from anymax.data.prepared.encoded import encode_parts
from anymax.data.prepared.prepared import Announce, throttled
from anymax.data.prepared.saved import DATA_FILE, TOKENIZER_FILE, check_identity, write_data
from anymax.data.text.corpus import Split
from anymax.data.triplets.config import Triplets
from anymax.data.triplets.opening import Triplet, triplet_of
from anymax.data.units.word_pieces import WordPieces

# What the source of a pair has besides its pieces, "[SEP]" and "<T>", and what its target has, "<T>".
SOURCE_MARKS, TARGET_MARKS = 2, 1


@dataclass(frozen=True)
class PreparedTriplets(PreparedPairs):
    """Triplets as ids: the source of a pair is the sentence, "[SEP]" and its translation, its target the correction.

    Args:
        corpus: the text; the source of a pair is the sentence, a tab and its translation.
        splits: the ids of each split there is.
        counted: how many triplets each split has, and how many were left out as blank or one-sided.
        limits: the most pieces of a source and of a correction in train; None where there is no limit.
        pieces: what the ids stand for.
        oversample: how often train has each of its own triplets.

    Example:
        >>> from anymax.data import Triplets, prepare_triplets
        >>> prepared = prepare_triplets(Triplets("drawn").toy(), cache="cache")
        >>> prepared.triplets("test")[0].translation
        'ah ab ad ad ab'
        >>> prepared.triplets("test")[0].correction
        'ah ab ad ad ak'
    """

    pieces: WordPieces
    oversample: int

    def triplets(self, split: Split) -> list[Triplet]:
        """The triplets of a split as text; of valid and test, those of `split` one for one."""
        return [triplet_of(pair.source, pair.target) for pair in self.corpus.pairs(split)]

    def segments(self, split: Split) -> tuple[Tensor, Tensor]:
        """How many pieces the sentence and the translation of each triplet have."""
        pairs = self.split(split)
        middles = (pairs.source_ids == self.pieces.sep).nonzero().squeeze(1)[pairs.numbers]
        sentences = middles - (pairs.source_ends - pairs.source_lengths)
        return sentences, pairs.source_lengths - SOURCE_MARKS - sentences

    def check_lengths(self, split: Split, *, max_positions: int) -> None:
        """Refuse a split with a part that has more pieces than a model has positions; the error says where it stands.

        Args:
            max_positions: of the model, which a sentence, its translation and its correction fill one by one.
        """
        pairs = self.split(split)
        sides = zip(("sentence", "translation"), self.segments(split), strict=True)
        parts = [*((name, lengths, 0) for name, lengths in sides), ("correction", pairs.target_lengths, 1)]
        for name, lengths, side in parts:
            if int(lengths.max()) > max_positions:
                longest = int(lengths.argmax())
                place = self.corpus.places(split, int(pairs.numbers[longest]))[side]
                fix = (
                    "leave long triplets out with most_source and most_target"
                    if split == "train"
                    else f"take it out of {split}, which keeps triplets of any length"
                )
                raise ValueError(
                    f"{place}: the {name} has {int(lengths[longest])} word pieces, and the model has {max_positions} "
                    f"positions; shorten it, or {fix}"
                )

    def identity(self) -> dict[str, str]:
        """Hashes of the pieces and of the ids of each split, and the limits: what a run depends on."""
        return {"pieces": self.pieces.hash, **self.identity_of_texts(), "oversample": str(self.oversample)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the pieces, and the identity to compare with; the text stays where it is."""
        folder = Path(folder)
        self.pieces.save(folder / TOKENIZER_FILE)
        write_data(folder, {"name": self.name, "splitting": "spaces", "identity": self.identity()})

    @staticmethod
    def saved_pieces(folder: str | os.PathLike[str]) -> WordPieces | None:
        """The pieces that `save` wrote into a folder, or None where it holds none; no text is needed."""
        from anymax.data.multilingual.prepared import PreparedTexts

        return PreparedTexts.saved_pieces(folder)

    def check_unchanged(self, folder: str | os.PathLike[str]) -> None:
        """Refuse a text, pieces or limits other than those that were saved into a folder."""
        check_identity(self.identity(), Path(folder))


def prepare_triplets(
    config: Triplets,
    *,
    pieces: WordPieces | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> PreparedTriplets:
    """Check every triplet, learn or load the pieces, and encode all; what was done before is found in the cache.

    Triplets that are too long are left out of train alone, and stay in valid and test, so that scores compare.

    Args:
        config: what to read, and the pieces to learn.
        pieces: use these, such as those of a BERT or the saved ones of a run.
        cache: the folder for counts, pieces and encoded files; by default `default_cache()`.
        progress: called with a line that says what is being done or left out.

    Example:
        >>> from anymax.data import Triplets, prepare_triplets
        >>> prepared = prepare_triplets(Triplets("drawn").toy(), cache="cache")
        >>> pieces, train = prepared.pieces, prepared.split("train")
        >>> pieces.pieces(train.source(0)).count("[SEP]"), pieces.pieces(train.target(0))[-1]
        (1, '<T>')
    """
    corpus = config.open()
    folder = Path(default_cache() if cache is None else cache)
    counted = {split: corpus.count(split, cache=folder) for split in reversed(list(corpus.sources))}
    if pieces is None:
        pieces = make_triplet_pieces(config, corpus, cache=folder, progress=progress)
    # A vocabulary without words to begin and end with is refused before anything is encoded.
    _ = pieces.first, pieces.last
    limits = (
        None if config.most_source is None else config.most_source + SOURCE_MARKS,
        None if config.most_target is None else config.most_target + TARGET_MARKS,
    )
    splits: dict[Split, EncodedPairs] = {}
    for split in corpus.sources:
        source, target = (
            encode_parts(
                corpus.side(side),
                split,
                pieces,
                cache=folder,
                progress=throttled(progress, f"encoding {corpus.name} {split}"),
            )
            for side in ("source", "target")
        )
        splits[split] = EncodedPairs.of(
            source,
            target,
            source_eos=pieces.last,
            target_eos=pieces.last,
            most_source=limits[0],
            most_target=limits[1],
            drop_long=split == "train",
        )
        if progress is not None:
            progress(report(f"{corpus.name} {split}", splits[split], counted[split], limits))
    if not len(splits["train"]):
        raise ValueError(
            f"most_source and most_target must leave some triplet of {corpus.name} train, got {config.most_source} and "
            f"{config.most_target}, which leave out all {counted['train'].pairs:,}; raise them"
        )
    if config.oversample > 1:
        own = replace(config, further=(), oversample=1).open().count("train", cache=folder).pairs
        splits["train"] = splits["train"].repeated(splits["train"].numbers < own, config.oversample)
    return PreparedTriplets(corpus, splits, counted, limits, pieces, config.oversample)


def reopen_triplets(
    config: Triplets,
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> PreparedTriplets:
    """The triplets of a run, with the pieces that lie in its folder; a text that was changed since is refused.

    Args:
        config: what was prepared.
        folder: that of the run, or another that `save` wrote to.
        cache, progress: as in `prepare_triplets`.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import Triplets, prepare_triplets, reopen_triplets
        >>> config = Triplets("drawn").toy()
        >>> prepared = prepare_triplets(config, cache="cache")
        >>> Path("run").mkdir()
        >>> prepared.save("run")
        >>> reopen_triplets(config, "run", cache="cache").identity() == prepared.identity()
        True
    """
    pieces = PreparedTriplets.saved_pieces(folder)
    if pieces is None:
        raise ValueError(f"{folder} holds no {DATA_FILE}, so no text was prepared there; give the folder of a run")
    prepared = prepare_triplets(config, pieces=pieces, cache=cache, progress=progress)
    prepared.check_unchanged(folder)
    return prepared


def make_triplet_pieces(
    config: Triplets, corpus: ParallelCorpus, *, cache: Path, progress: Announce | None = None
) -> WordPieces:
    """The word pieces of sentences, translations and corrections, loaded or learned from those of train."""
    which = config.pieces
    if which.vocabulary is not None:
        return WordPieces.load(which.vocabulary, splitting="spaces")
    sides = [count_words(corpus.side(side), which, cache=cache, progress=progress) for side in ("source", "target")]
    counts: Counter[str] = Counter()
    for lexicon in sides:
        first = lexicon.num_specials
        counts.update(dict(zip(lexicon.words[first:], lexicon.counts[first:], strict=True)))
    words: Mapping[str, int] = {word: count for word, count in counts.items() if count}
    state = digest(*(lexicon.hash for lexicon in sides))
    return learn_pieces(words, which, plain_name(corpus.name), state, cache=cache, progress=progress)
