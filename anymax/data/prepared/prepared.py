"""Prepared text: a corpus as ids, and the units that the ids stand for; made once, and for a run always the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anymax.data.prepared.cache import default_cache, digest, kept, plain_name
from anymax.data.prepared.encoded import Encoded, Progress, encode
from anymax.data.prepared.saved import (
    DATA_FILE,
    check_identity,
    hashes_of,
    load_units,
    read_data,
    save_units,
    write_data,
)
from anymax.data.text.config import BPE, Text, Words
from anymax.data.text.corpus import Corpus, Split
from anymax.data.text.words import Splitting
from anymax.data.units.counting import count_words, lexicon_of_words
from anymax.data.units.lexicon import Lexicon
from anymax.data.units.subwords import MOST_OF_WORD, Subwords
from anymax.data.units.units import Units

Announce = Callable[[str], None]

# Seconds between two announcements of one job.
PAUSE = 1.0


@dataclass(frozen=True)
class Spelled:
    """A corpus whose unknown words are kept apart: each has an id of its own, which a model may read by its spelling.

    Args:
        lexicon: the words of the units with their ids, and behind them every other word of the corpus.
        splits: the ids of each split there is.
    """

    lexicon: Lexicon
    splits: Mapping[Split, Encoded]


@dataclass(frozen=True)
class Prepared:
    r"""A corpus as ids.

    Args:
        corpus: the text.
        units: what the ids stand for.
        splits: the ids of each split there is.
        cache: the folder of encoded files.
        spelled: the same corpus with its unknown words kept apart; None where that was not asked for.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import Text, prepare
        >>> _ = Path("poem.txt").write_text("Roses are red.\nViolets are blue.\nSugar is sweet.\n")
        >>> prepared = prepare(Text(path=Path("poem.txt")), cache="cache")
        >>> prepared.lexicon.decode(prepared.split("train").tokens())
        ['Roses', 'are', 'red', '.', '<eos>']
        >>> prepared.split("test").num_unknown
        3
    """

    corpus: Corpus
    units: Units
    splits: Mapping[Split, Encoded]
    cache: Path
    spelled: Spelled | None = None

    @property
    def name(self) -> str:
        """What the corpus is called."""
        return self.corpus.name

    @property
    def lexicon(self) -> Lexicon:
        """Of the units."""
        return self.units.lexicon

    @property
    def words(self) -> Lexicon:
        """Of the words, with their counts in the training text; the same object where units are words."""
        return self.units.words

    @property
    def subwords(self) -> Subwords | None:
        """How words are cut; None where units are words."""
        return self.units.subwords

    @property
    def ends_word(self) -> bytes:
        """For each id 1 where the unit completes a word, else 0."""
        return self.units.ends_word

    def split(self, split: Split) -> Encoded:
        """The ids of a split; a corpus without it is an error."""
        # The corpus knows which there are, and says so.
        self.corpus.source(split)
        return self.splits[split]

    def as_read(self, split: Split) -> Encoded:
        """The ids of a split that a model reads: those it predicts, but for unknown words that are kept apart."""
        return self.split(split) if self.spelled is None else self.spelled.splits[split]

    def as_words(self, split: Split, *, progress: Announce | None = None) -> Encoded:
        """The split as ids of `words`, one for every unit that ends a word; the same file where units are words."""
        if self.subwords is None:
            return self.split(split)
        encoding = throttled(progress, f"encoding {self.name} {split} by words")
        return encode(self.corpus, split, self.words, cache=self.cache, progress=encoding)

    def identity(self) -> dict[str, str]:
        """Hashes of the units and of the ids of each split: what a run depends on."""
        spelled = {} if self.spelled is None else {"spelled": self.spelled.lexicon.hash}
        for split, encoded in {} if self.spelled is None else self.spelled.splits.items():
            spelled[f"{split} as read"] = encoded.tokens_hash
        return hashes_of(self.units) | {split: encoded.tokens_hash for split, encoded in self.splits.items()} | spelled

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the units, and the identity to compare with; the text stays where it is."""
        folder = Path(folder)
        save_units(self.units, folder)
        write_data(folder, {"name": self.name, "splitting": self.units.splitting, "identity": self.identity()})

    @staticmethod
    def saved_units(folder: str | os.PathLike[str]) -> Units | None:
        """The units that `save` wrote into a folder, or None where it holds none; no text is needed."""
        folder = Path(folder)
        if not (folder / DATA_FILE).exists():
            return None
        values = read_data(folder)
        return load_units(folder, values["splitting"], values["identity"])

    def check_unchanged(self, folder: str | os.PathLike[str]) -> None:
        """Refuse a text or units other than those that were saved into a folder."""
        check_identity(self.identity(), Path(folder))


def prepare(
    text: Text,
    *,
    units: Units | None = None,
    spell_unknown: bool = False,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> Prepared:
    r"""Count the words of a text, make its units, and encode its splits; what was done before is found in the cache.

    Args:
        text: what to read, and the units to make.
        units: use these, such as the saved ones of a run, and not those that the text asks for.
        spell_unknown: encode the splits a second time, with an id for every word outside the lexicon.
        cache: the folder for counts, units and encoded files; by default `default_cache()`.
        progress: called with a line that says what is being done, at most once a second.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import Text, prepare
        >>> _ = Path("poem.txt").write_text("Roses are red.\nViolets are blue.\nSugar is sweet.\n")
        >>> prepared = prepare(Text(path=Path("poem.txt")), cache="cache")
        >>> prepared.split("train").tokens()
        tensor([3, 4, 5, 2, 0], dtype=torch.uint16)
        >>> prepared.lexicon.words
        ('<eos>', '<unk>', '.', 'Roses', 'are', 'red')
    """
    corpus = text.open()
    folder = Path(default_cache() if cache is None else cache)
    if units is None:
        units = make_units(corpus, text.units, cache=folder, progress=progress)
    splits = {split: encode_split(corpus, split, units, cache=folder, progress=progress) for split in corpus.sources}
    spelled = spell(corpus, units, cache=folder, progress=progress) if spell_unknown else None
    return Prepared(corpus, units, splits, folder, spelled)


def reopen(
    text: Text,
    folder: str | os.PathLike[str],
    *,
    spell_unknown: bool = False,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> Prepared:
    r"""The text of a run, with the units that lie in its folder; a text that was changed since is refused.

    Args:
        text: what was prepared.
        folder: that of the run, or another that `save` wrote to.
        spell_unknown, cache, progress: as in `prepare`.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import Text, prepare, reopen
        >>> _ = Path("poem.txt").write_text("Roses are red.\nViolets are blue.\nSugar is sweet.\n")
        >>> text = Text(path=Path("poem.txt"))
        >>> Path("run").mkdir()
        >>> prepare(text, cache="cache").save("run")
        >>> reopen(text, "run", cache="cache").split("train").num_tokens
        5
    """
    units = Prepared.saved_units(folder)
    if units is None:
        raise ValueError(f"{folder} holds no {DATA_FILE}, so no text was prepared there; give the folder of a run")
    prepared = prepare(text, units=units, spell_unknown=spell_unknown, cache=cache, progress=progress)
    prepared.check_unchanged(folder)
    return prepared


def make_units(corpus: Corpus, which: Words | BPE, *, cache: Path, progress: Announce | None = None) -> Units:
    """The units of a corpus, made of its training text or found in the cache.

    Args:
        corpus: the text.
        which: words or subwords, and how many.
        cache: the folder for counts and units.
        progress: called with a line that says what is being done, at most once a second.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import Words, corpus_of_lines, make_units
        >>> corpus = corpus_of_lines("words", ["to be or not to be"], valid=0, test=0)
        >>> units = make_units(corpus, Words(min_count=2), cache=Path("cache"))
        >>> units.lexicon.words
        ('<eos>', '<unk>', 'be', 'to')
    """
    counting = throttled(progress, f"counting the words of {corpus.name}")
    words = lexicon_of_words(corpus, cache=cache, progress=counting)
    return units_of_words(words, which, corpus.name, corpus.splitting, cache=cache, progress=progress)


def units_of_words(
    words: Lexicon,
    which: Words | BPE,
    name: str,
    splitting: Splitting,
    *,
    cache: Path,
    progress: Announce | None = None,
) -> Units:
    """The units of a text whose words were counted, or those found in the cache.

    Args:
        words: all words with their counts.
        name: what the text is called in messages and file names.
    """
    if isinstance(which, BPE):
        return _subwords(words, which, name, splitting, cache, progress)
    if which != Words():
        words = Lexicon.from_counts(
            _counts(words), min_count=which.min_count, max_size=which.max_size, pad_to_multiple=which.pad_to_multiple
        )
    if not any(words.counts[words.num_specials :]):
        raise ValueError(
            f"units must leave some word of {name} besides <eos> and <unk>, but min_count {which.min_count} and "
            f"max_size {which.max_size} leave none; lower min_count or raise max_size"
        )
    return Units(words, words, splitting=splitting)


def spell(corpus: Corpus, units: Units, *, cache: Path, progress: Announce | None = None) -> Spelled:
    """A corpus with its unknown words kept apart, encoded now or found in the cache."""
    if units.subwords is not None:
        raise ValueError("spell_unknown must be False for subwords, of which words are made anyway, got True")
    sources = [corpus.source(split) for split in corpus.sources]
    states = [state for source in sources for state in (source.place(), source.fingerprint())]

    def collect() -> Lexicon:
        words = set[str]()
        for split in corpus.sources:
            what = f"looking for unknown words in {corpus.name} {split}"
            words.update(count_words(corpus, split, progress=throttled(progress, what)))
        return units.lexicon.extended(words)

    name = f"{plain_name(corpus.name)}-spelled-{digest(units.lexicon.hash, corpus.splitting, *states)}.txt"
    lexicon = kept(cache / name, Lexicon.load, collect)
    spelled = Units(lexicon, lexicon, splitting=units.splitting)
    splits = {split: encode_split(corpus, split, spelled, cache=cache, progress=progress) for split in corpus.sources}
    return Spelled(lexicon, splits)


def encode_split(
    corpus: Corpus, split: Split, units: Units, *, cache: Path, progress: Announce | None = None
) -> Encoded:
    """`encode`, with an announcement now and then."""
    return encode(corpus, split, units, cache=cache, progress=throttled(progress, f"encoding {corpus.name} {split}"))


def _subwords(
    words: Lexicon, which: BPE, name: str, splitting: Splitting, cache: Path, progress: Announce | None
) -> Units:
    counts = _counts(words)
    file = f"{plain_name(name)}-pieces"

    def learn() -> Subwords:
        if progress is not None:
            progress(f"learning {which.size:,} subwords from {len(words):,} words of {name}")
        return Subwords.train(counts, which.size)

    if which.tokenizer is None:
        subwords = kept(cache / f"{file}-{digest(words.hash, which.size)}.json", Subwords.load, learn)
    else:
        subwords = Subwords.load(which.tokenizer)

    def count() -> Lexicon:
        return Lexicon.from_counts(
            subwords.count(counts), keep=subwords.vocabulary, pad_to_multiple=which.pad_to_multiple
        )

    path = cache / f"{file}-{digest(words.hash, subwords.hash, which.pad_to_multiple)}.txt"
    lexicon = kept(path, Lexicon.load, count)
    if not any(lexicon.counts[lexicon.num_specials :]):
        raise ValueError(
            f"units must leave some word of {name} besides <eos> and <unk>, but every one has more than "
            f"{MOST_OF_WORD:,} characters or some that no subword has; put spaces between its words, or learn the "
            "subwords from this text"
        )
    return Units(lexicon, words, subwords, splitting)


def _counts(lexicon: Lexicon) -> dict[str, int]:
    return dict(zip(lexicon.words, lexicon.counts, strict=True))


def throttled(announce: Announce | None, what: str) -> Progress | None:
    """An announcement of the work when it begins, and after each pause of the lines and tokens so far."""
    if announce is None:
        return None
    announced: float | None = None

    def progress(num_lines: int, num_tokens: int) -> None:
        nonlocal announced
        now = time.monotonic()
        if announced is None or now - announced >= PAUSE:
            announce(what if announced is None else f"{what}: {num_lines:,} lines, {num_tokens:,} tokens")
            announced = now

    return progress
