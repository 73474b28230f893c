"""Subwords: words cut into the parts that byte-pair encoding finds in a text, so that few words are unknown.

This file does not import torch, and the tokenizers package only where subwords are learned or cut.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anymax.data.units.lexicon import EOS, UNK, Lexicon
from anymax.files import check_file, replacing

if TYPE_CHECKING:
    from tokenizers.models import BPE

# What a subword that ends a word carries.
END = "</w>"
SPECIALS = (EOS, UNK)
# How often a word stands in one text for the trainer, which has no other way to take counts.
REPEATED = 1 << 8
# Characters of a word that is cut into subwords. The trainer's time grows with the square of the length: a tenth of a
# second for a word of this many, minutes for one of a million.
MOST_OF_WORD = 10_000


@dataclass(frozen=True, repr=False)
class Subwords:
    """Words as subwords, the last of which ends in "</w>": lower, lo + wer</w>.

    Usually made by `train` or `load`. None reaches across words. "<eos>" and "<unk>" stay whole, and a word that
    holds a character not in the vocabulary is "<unk>" as a whole, so that the words of a text can be counted in its
    subwords. So is one that holds "<eos>", "<unk>" or "</w>" among other characters, and one of more than 10,000
    characters.

    Args:
        vocabulary: all subwords; the two special words and every single character are among them.
        merges: which two neighbouring subwords become one, in the order they are tried.

    Sennrich et al. 2016.

    Example:
        >>> from anymax.data import Subwords
        >>> subwords = Subwords.train({"low": 5, "lower": 3, "newer": 4, "wide": 2}, size=21)
        >>> subwords.split("lower")
        ('lo', 'wer</w>')
        >>> subwords.join(subwords.split("lower"))
        ['lower']
    """

    vocabulary: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    @classmethod
    def train(cls, counts: Mapping[str, int], size: int, *, min_count: int = 2) -> Subwords:
        """Learn subwords from counted words. The same counts give the same subwords in the same order, on any machine.

        Every character has two subwords, inside a word and at its end. The vocabulary is sorted as a lexicon of the
        counted text is, so the ids of its file are those of `Lexicon.from_counts(subwords.count(counts), keep=...)`.

        Args:
            size: the most subwords, "<eos>" and "<unk>" included; fewer where no two go together often enough.
            min_count: the least times that two neighbours must be seen to become one.
        """
        counts_of = {word: count for word, count in counts.items() if not _is_kept(word)}
        characters = sorted(set().union(*counts_of))
        single = [*characters, *(character + END for character in characters)]
        least = len(SPECIALS) + len(single)
        if size < least:
            raise ValueError(
                f"size must be at least {least} for this text: {' and '.join(SPECIALS)}, and two for each of its "
                f"{len(characters)} characters; got {size}"
            )
        merges = _learn(counts_of, single, size - len(SPECIALS), min_count)
        subwords = dict.fromkeys([*SPECIALS, *single, *(left + right for left, right in merges)])
        unsorted = cls(tuple(subwords), merges)
        return cls(Lexicon.from_counts(unsorted.count(counts), keep=subwords).words, merges)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Subwords:
        """Read what `save` or the tokenizers package wrote: byte-pair encoding whose words end in "</w>"."""
        check_file(path, "a tokenizer.json")
        try:
            model = json.loads(Path(path).read_bytes())["model"]
            vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
            # Earlier versions of tokenizers wrote both subwords as one text.
            merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
            pairs = tuple((left, right) for left, right in merges)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path} is not a tokenizer.json of byte-pair encoding; make it again") from None
        if model.get("end_of_word_suffix") != END or model.get("continuing_subword_prefix"):
            raise ValueError(
                f"{path} must mark the subwords that end words with {END!r} and no others, but its mark for them is "
                f"{model.get('end_of_word_suffix')!r}; train it with end_of_word_suffix={END!r}"
            )
        loaded = cls(tuple(dict.fromkeys([*SPECIALS, *vocabulary])), pairs)
        try:
            _ = loaded._model
        except Exception as error:
            raise ValueError(f"{path} was changed: its merges do not fit its vocabulary ({error})") from None
        return loaded

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a tokenizer.json that the tokenizers package reads too, and cuts a line of words by spaces with."""
        from tokenizers import Tokenizer, decoders, pre_tokenizers

        tokenizer = Tokenizer(self._model)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.BPEDecoder(suffix=END)
        tokenizer.add_special_tokens(list(SPECIALS))
        with replacing(path) as file:
            file.write(tokenizer.to_str(pretty=True).encode())

    def split(self, word: str) -> tuple[str, ...]:
        """The subwords of a word, one at least."""
        if _is_kept(word):
            return (word if word in SPECIALS else UNK,)
        subwords = tuple(token.value for token in self._model.tokenize(word))
        return (UNK,) if UNK in subwords else subwords

    def join(self, subwords: Iterable[str]) -> list[str]:
        """The words of subwords; what is left of a word that does not end is the last."""
        words, begun = [], ""
        for subword in subwords:
            if subword in SPECIALS:
                words += [begun, subword]
                begun = ""
            elif subword.endswith(END):
                words.append(begun + subword.removesuffix(END))
                begun = ""
            else:
                begun += subword
        return [word for word in [*words, begun] if word]

    def ends_word(self, subword: str) -> bool:
        """Whether a word ends with the subword, as with the special words."""
        return subword in SPECIALS or subword.endswith(END)

    def count(self, counts: Mapping[str, int]) -> Counter[str]:
        """How often each subword occurs in a text, from the counts of its words."""
        counted: Counter[str] = Counter()
        for word, count in counts.items():
            for subword in self.split(word):
                counted[subword] += count
        return counted

    @cached_property
    def hash(self) -> str:
        """The sha256 of subwords and merges, in hexadecimal digits; another file of the same has the same."""
        return hashlib.sha256(json.dumps([self.vocabulary, self.merges]).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __repr__(self) -> str:
        return f"Subwords({len(self)} subwords, {self.hash[:8]})"

    @cached_property
    def _model(self) -> BPE:
        ids = {subword: id for id, subword in enumerate(self.vocabulary)}
        return _model(ids, list(self.merges))


def _model(ids: dict[str, int], merges: list[tuple[str, str]]) -> BPE:
    from tokenizers.models import BPE

    return BPE(vocab=ids, merges=merges, unk_token=UNK, end_of_word_suffix=END)


def _learn(counts: Mapping[str, int], single: list[str], size: int, min_count: int) -> tuple[tuple[str, str], ...]:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(_model({}, []))
    # Words hold no line ends.
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    trainer = BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        # Ids decide which of two pairs of one count is merged first. Left to itself, the trainer numbers characters
        # that end words in an order that differs from run to run.
        special_tokens=single,
        end_of_word_suffix=END,
        show_progress=False,
    )
    tokenizer.train_from_iterator(repeated(counts), trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return tuple((left, right) for left, right in model["merges"])


def repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Every word as often as it was counted, some hundred times in one text."""
    for word, count in counts.items():
        full, rest = divmod(count, REPEATED)
        text = "\n".join([word] * REPEATED) if full else ""
        for _ in range(full):
            yield text
        yield "\n".join([word] * rest)


def _is_kept(word: str) -> bool:
    """Whether a word is not cut: those that are or hold a special word or the mark, and those that are too long."""
    return len(word) > MOST_OF_WORD or EOS in word or UNK in word or END in word
