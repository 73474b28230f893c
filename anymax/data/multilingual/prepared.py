"""Prepared texts: word pieces learned from all of them, and each as ids; made once, and for a run always the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anymax.data.multilingual.config import MultilingualText, Pieces
from anymax.data.prepared.cache import default_cache, digest, kept, plain_name
from anymax.data.prepared.encoded import Encoded, encode_pieces
from anymax.data.prepared.prepared import Announce, throttled
from anymax.data.prepared.saved import DATA_FILE, TOKENIZER_FILE, check_identity, read_data, write_data
from anymax.data.text.corpus import Corpus, Split
from anymax.data.units.lexicon import EOS, UNK, Lexicon
from anymax.data.units.word_pieces import SPECIALS, WordPieces


@dataclass(frozen=True)
class PreparedTexts:
    r"""Texts as ids.

    Args:
        texts: each text by its name.
        pieces: what the ids stand for.
        splits: of each split that all texts have, the ids of each, "[SEP]" behind every line.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import MultilingualText, Pieces, prepare_texts
        >>> for name, text in {"en": "the dog\n", "de": "der Hund\n"}.items():
        ...     _ = Path(name).write_text(text * 20)
        >>> config = MultilingualText(paths=(Path("en"), Path("de")), pieces=Pieces(size=30))
        >>> prepared = prepare_texts(config, cache="cache")
        >>> {name: encoded.num_lines for name, encoded in prepared.split("train").items()}
        {'en': 18, 'de': 18}
    """

    texts: Mapping[str, Corpus]
    pieces: WordPieces
    splits: Mapping[Split, Mapping[str, Encoded]]

    def split(self, split: Split) -> Mapping[str, Encoded]:
        """The ids of a split by the names of the texts; a text without it is an error."""
        for corpus in self.texts.values():
            # The corpus knows which there are, and says so.
            corpus.source(split)
        return self.splits[split]

    def identity(self) -> dict[str, str]:
        """Hashes of the pieces and of the ids of each text: what a run depends on."""
        texts = {
            f"{split} {name}": encoded.tokens_hash
            for split, of_texts in self.splits.items()
            for name, encoded in of_texts.items()
        }
        return {"pieces": self.pieces.hash, **texts}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the pieces, and the identity to compare with; the texts stay where they are."""
        folder = Path(folder)
        self.pieces.save(folder / TOKENIZER_FILE)
        # The pieces split lines; "spaces" says that nothing else did.
        write_data(folder, {"name": ", ".join(self.texts), "splitting": "spaces", "identity": self.identity()})

    @staticmethod
    def saved_pieces(folder: str | os.PathLike[str]) -> WordPieces | None:
        """The pieces that `save` wrote into a folder, or None where it holds none; no text is needed."""
        folder = Path(folder)
        if not (folder / DATA_FILE).exists():
            return None
        wanted = read_data(folder)["identity"].get("pieces")
        pieces = WordPieces.load(folder / TOKENIZER_FILE)
        if pieces.hash != wanted:
            raise ValueError(
                f"{folder} holds other word pieces than were saved there (their hash differs); restore them"
            )
        return pieces

    def check_unchanged(self, folder: str | os.PathLike[str]) -> None:
        """Refuse texts or pieces other than those that were saved into a folder."""
        check_identity(self.identity(), Path(folder))


def prepare_texts(
    config: MultilingualText,
    *,
    pieces: WordPieces | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> PreparedTexts:
    r"""Learn the word pieces of some texts and encode them; what was done before is found in the cache.

    Args:
        config: what to read, and the pieces to learn.
        pieces: use these, such as the saved ones of a run, and not those that the config asks for.
        cache: the folder for counts, pieces and encoded files; by default `default_cache()`.
        progress: called with a line that says what is being done, at most once a second.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import MultilingualText, Pieces, prepare_texts
        >>> _ = Path("en").write_text("the dog saw the other dog\n" * 20)
        >>> config = MultilingualText(paths=(Path("en"),), pieces=Pieces(size=30))
        >>> prepared = prepare_texts(config, cache="cache")
        >>> prepared.pieces.pieces(prepared.split("valid")["en"].tokens())
        ['the', 'do', '##g', 's', '##a', '##w', 'the', 'o', '##t', '##he', '##r', 'do', '##g', '[SEP]']
    """
    texts = config.open()
    folder = Path(default_cache() if cache is None else cache)
    if pieces is None:
        pieces = make_pieces(config, texts, cache=folder, progress=progress)
    names: list[Split] = ["train", "valid", "test"]
    splits: dict[Split, dict[str, Encoded]] = {}
    for split in names:
        if not all(split in corpus.sources for corpus in texts.values()):
            continue
        splits[split] = {
            name: encode_pieces(
                corpus, split, pieces, cache=folder, progress=throttled(progress, f"encoding {name} {split}")
            )
            for name, corpus in texts.items()
        }
    return PreparedTexts(texts, pieces, splits)


def reopen_texts(
    config: MultilingualText,
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Announce | None = None,
) -> PreparedTexts:
    r"""The texts of a run, with the pieces that lie in its folder; texts that were changed since are refused.

    Args:
        config: what was prepared.
        folder: that of the run, or another that `save` wrote to.
        cache, progress: as in `prepare_texts`.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import MultilingualText, Pieces, prepare_texts, reopen_texts
        >>> _ = Path("en").write_text("the dog saw the other dog\n" * 20)
        >>> config = MultilingualText(paths=(Path("en"),), pieces=Pieces(size=30))
        >>> prepared = prepare_texts(config, cache="cache")
        >>> Path("run").mkdir()
        >>> prepared.save("run")
        >>> reopen_texts(config, "run", cache="cache").identity() == prepared.identity()
        True
    """
    pieces = PreparedTexts.saved_pieces(folder)
    if pieces is None:
        raise ValueError(f"{folder} holds no {DATA_FILE}, so no text was prepared there; give the folder of a run")
    prepared = prepare_texts(config, pieces=pieces, cache=cache, progress=progress)
    prepared.check_unchanged(folder)
    return prepared


def make_pieces(
    config: MultilingualText, texts: Mapping[str, Corpus], *, cache: Path, progress: Announce | None = None
) -> WordPieces:
    """The word pieces of the training texts, learned or found in the cache.

    Words are weighed by the shares of their texts, so that a small text of a large share gets its pieces.
    """
    which = config.pieces
    if which.vocabulary is not None:
        return WordPieces.load(which.vocabulary)
    words = {name: count_words(corpus, which, cache=cache, progress=progress) for name, corpus in texts.items()}
    weighed = _weighed(words, dict(zip(config.names, config.normal_shares, strict=True)))
    state = digest(*(lexicon.hash for lexicon in words.values()), config.normal_shares)
    return learn_pieces(weighed, which, plain_name("-".join(texts)), state, cache=cache, progress=progress)


def learn_pieces(
    words: Mapping[str, int], which: Pieces, name: str, state: str, *, cache: Path, progress: Announce | None = None
) -> WordPieces:
    """Word pieces of counted words, or those that an earlier call learned.

    Args:
        name: of the text, for the name of a file.
        state: differs where the words or their counts do.
    """
    settings = (which.size, which.min_count, which.most_characters, which.splitting, which.lowercase)
    if progress is not None:
        progress(f"learning {which.size:,} word pieces from {len(words):,} words")

    def learn() -> WordPieces:
        return WordPieces.train(
            words,
            which.size,
            min_count=which.min_count,
            most_characters=which.most_characters,
            splitting=which.splitting,
            lowercase=which.lowercase,
        )

    return kept(cache / f"{name}-word-pieces-{digest(state, *settings)}.json", WordPieces.load, learn)


def count_words(corpus: Corpus, which: Pieces, *, cache: Path, progress: Announce | None = None) -> Lexicon:
    """All words of a training text with their counts, from the cache where the same text was counted before."""
    source, cutter = corpus.source("train"), WordPieces(SPECIALS, which.splitting, which.lowercase)
    counting = throttled(progress, f"counting the words of {corpus.name}")

    def count() -> Lexicon:
        counts, num_words = Counter[str](), 0
        for number, line in enumerate(source.lines(), 1):
            words = cutter.words(line)
            counts.update(words)
            num_words += len(words)
            if counting is not None:
                counting(number, num_words)
        # A lexicon has both by itself, and no text means them.
        return Lexicon.from_counts({word: number for word, number in counts.items() if word not in (EOS, UNK)})

    what = digest("word pieces", cutter.hash, source.place(), source.fingerprint())
    return kept(cache / f"{plain_name(corpus.name)}-words-{what}.txt", Lexicon.load, count)


def _weighed(words: Mapping[str, Lexicon], shares: Mapping[str, float]) -> dict[str, int]:
    """The counts of all texts together, each scaled to its share of their sum; no word falls below one."""
    sums = {name: sum(lexicon.counts) for name, lexicon in words.items()}
    total, weighed = sum(sums.values()), Counter[str]()
    for name, lexicon in words.items():
        factor = shares[name] * total / max(1, sums[name]) if len(words) > 1 else 1.0
        for word, count in zip(
            lexicon.words[lexicon.num_specials :], lexicon.counts[lexicon.num_specials :], strict=True
        ):
            weighed[word] += max(1, round(count * factor))
    return {word: count for word, count in weighed.items() if count}
