"""Counting the words of a corpus, once for each text."""

import contextlib
from collections import Counter
from pathlib import Path

from anymax.data.prepared.cache import digest, kept, plain_name
from anymax.data.prepared.encoded import Progress, silent
from anymax.data.text.corpus import Corpus, Split
from anymax.data.units.lexicon import EOS, Lexicon

# How many words are held before they are counted.
HELD_WORDS = 1 << 14


def count_words(corpus: Corpus, split: Split, *, progress: Progress | None = None) -> Counter[str]:
    """How often each word of a split occurs, "<eos>" at the end of each line included.

    The text is never held, but every different word is: about 150 bytes each.

    Args:
        corpus: the text.
        split: which of its splits.
        progress: called now and then with the lines and tokens counted so far, and once at the end.

    Example:
        >>> from anymax.data import corpus_of_lines, count_words
        >>> corpus = corpus_of_lines("words", ["to be or not to be", "that is it"], valid=0, test=0)
        >>> count_words(corpus, "train").most_common(3)
        [('to', 2), ('be', 2), ('<eos>', 2)]
    """
    counts: Counter[str] = Counter()
    held: list[str] = []
    num_lines = num_words = 0

    def flush() -> None:
        nonlocal num_words
        counts.update(held)
        num_words += len(held)
        held.clear()
        (progress or silent)(num_lines, num_words + num_lines)

    for words in corpus.sentences(split):
        held += words
        num_lines += 1
        if len(held) >= HELD_WORDS:
            flush()
    flush()
    counts[EOS] += num_lines
    return counts


def lexicon_of_words(corpus: Corpus, *, cache: Path, progress: Progress | None = None) -> Lexicon:
    """All words of the training text with their counts, from the cache where the same text was counted before."""
    source = corpus.source("train")
    fingerprint = source.fingerprint()
    # A text that was changed has the same first part, by which the counts of its earlier state are found.
    place = f"{plain_name(corpus.name)}-words-{digest(source.place(), corpus.splitting)}"

    def count() -> Lexicon:
        counts = count_words(corpus, "train", progress=progress)
        if source.fingerprint() != fingerprint:
            raise ValueError(f"the text of {corpus.name} train was changed while it was read; count it again")
        for earlier in cache.glob(f"{place}-*.txt"):
            with contextlib.suppress(FileNotFoundError):
                earlier.unlink()
        return Lexicon.from_counts(counts)

    return kept(cache / f"{place}-{digest(fingerprint)}.txt", Lexicon.load, count)
