"""Lexicon: the words a model knows, sorted by how often they occur, with their counts and a hash of it all.

This file does not import torch, so that the command line can read a lexicon quickly.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from anymax.checks import check_counts
from anymax.files import check_file, replacing

EOS = "<eos>"
UNK = "<unk>"
VERSION = 1


class Ids(Protocol):
    """An integer tensor of one dimension."""

    def tolist(self) -> list[int]: ...


@dataclass(frozen=True, repr=False)
class Lexicon:
    """Words by id: special words first, then the others by falling count, words of one count by their text.

    Usually made by `from_words` or `from_counts`. Order and counts are what `Bands` asks for:
    `Bands.optimal(lexicon.counts, 3, dim=512, num_specials=lexicon.num_specials)`.

    Args:
        words: all words, special ones included.
        counts: how often each occurs in the text the lexicon was made from.
        num_specials: how many special words stand at the front; "<eos>" and "<unk>" must be among them.

    Example:
        >>> from anymax.data import Lexicon
        >>> lexicon = Lexicon.from_counts({"the": 5, "cat": 2})
        >>> lexicon.words
        ('<eos>', '<unk>', 'the', 'cat')
        >>> lexicon.encode(["the", "dog"])
        [2, 1]
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    num_specials: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "counts", tuple(self.counts))
        if len(self.words) != len(self.counts):
            raise ValueError(
                f"counts must hold one number for each of the {len(self.words)} words, got {len(self.counts)}"
            )
        check_counts(0, num_specials=self.num_specials)
        _check_specials(self.specials)
        for word in self.words:
            _check_word(word)
        if len(self._id_of) != len(self.words):
            word, times = Counter(self.words).most_common(1)[0]
            raise ValueError(f"words must differ from each other, but {word!r} is there {times} times")
        _check_falling(self.words, self.counts, self.num_specials)

    @classmethod
    def from_words(
        cls,
        words: Iterable[str],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        pad_to_multiple: int = 1,
        specials: Sequence[str] = (EOS, UNK),
    ) -> Lexicon:
        """The lexicon of a text, read once and not held. Arguments as in `from_counts`."""
        return cls.from_counts(
            Counter(words), min_count=min_count, max_size=max_size, pad_to_multiple=pad_to_multiple, specials=specials
        )

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        pad_to_multiple: int = 1,
        specials: Sequence[str] = (EOS, UNK),
        keep: Iterable[str] = (),
    ) -> Lexicon:
        """The lexicon of counted words.

        Every occurrence is counted once: those of dropped words count for "<unk>", so the counts of a lexicon add
        up to the tokens of its text.

        Args:
            min_count: words seen less often are dropped.
            max_size: the most words, special ones included; the rarest are dropped. More than there are is fine.
            pad_to_multiple: add made-up words of count 0 until the size is a multiple of this.
            specials: the special words in order. Those that occur in the text keep their count, others have 0.
            keep: words to have however rare they are, with count 0 where they do not occur.
        """
        check_counts(min_count=min_count, pad_to_multiple=pad_to_multiple)
        specials = tuple(specials)
        _check_specials(specials)
        if max_size is not None:
            check_counts(len(specials), max_size=max_size)
        wanted = dict.fromkeys(keep, 0)
        counts = {**wanted, **counts} if wanted else counts
        ordinary = [(word, count) for word, count in counts.items() if word not in specials]
        for word, _ in ordinary:
            _check_word(word)
        kept = sorted(
            ((word, count) for word, count in ordinary if count >= min_count or word in wanted),
            key=lambda item: (-item[1], item[0]),
        )
        kept = kept if max_size is None else kept[: max_size - len(specials)]
        special_counts = {word: counts.get(word, 0) for word in specials}
        special_counts[UNK] += sum(count for _, count in ordinary) - sum(count for _, count in kept)
        made_up = _made_up_words(-(len(specials) + len(kept)) % pad_to_multiple, counts)
        return cls(
            words=(*specials, *(word for word, _ in kept), *made_up),
            counts=(*special_counts.values(), *(count for _, count in kept), *(0 for _ in made_up)),
            num_specials=len(specials),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read what `save` wrote; a file that was changed or cut since is refused."""
        check_file(path, "a lexicon")
        try:
            head, _, body = Path(path).read_bytes().decode().partition("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a lexicon: it is not UTF-8 text ({error.reason})") from None
        num_specials, num_words, stated = _parse_head(head, path)
        if hashlib.sha256(_state(num_specials, num_words, body).encode()).hexdigest() != stated:
            found = body.count("\n")
            what = "was changed" if found == num_words else f"holds {found} of its {num_words} lines"
            raise ValueError(
                f"{path} {what} since it was saved (its hash differs); make the lexicon again or restore it"
            )
        rows = [line.rpartition("\t") for line in body.split("\n")[:-1]]
        try:
            return cls(tuple(row[0] for row in rows), tuple(int(row[2]) for row in rows), num_specials)
        except ValueError as error:
            raise ValueError(f"{path} is no lexicon that anymax wrote: {error}") from None

    def extended(self, words: Iterable[str]) -> Lexicon:
        """The same words with the same ids, and behind them, by their text, those of `words` that are not among them.

        They have a count of 0, as the lexicon counts them for "<unk>".
        """
        further = sorted({word for word in words if word not in self})
        return Lexicon((*self.words, *further), (*self.counts, *(0 for _ in further)), self.num_specials)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a readable UTF-8 file: a line with version, sizes and hash, then word, tab and count on a line each."""
        head = f"anymax-lexicon {VERSION}\tspecials {self.num_specials}\twords {len(self)}\tsha256 {self.hash}\n"
        with replacing(path) as file:
            file.write((head + self._body).encode())

    @cached_property
    def hash(self) -> str:
        """The sha256 of words, order, counts and number of specials, in hexadecimal digits."""
        return hashlib.sha256(_state(self.num_specials, len(self), self._body).encode()).hexdigest()

    @property
    def specials(self) -> tuple[str, ...]:
        """The special words."""
        return self.words[: self.num_specials]

    @property
    def eos(self) -> int:
        """The id of the word that ends a line."""
        return self._id_of[EOS]

    @property
    def unk(self) -> int:
        """The id of the word that stands for all unknown ones."""
        return self._id_of[UNK]

    def encode(self, words: Iterable[str]) -> list[int]:
        """The id of each word; unknown words get the id of "<unk>"."""
        return list(map(self._id_of.__getitem__, words))

    def decode(self, ids: Iterable[int] | Ids) -> list[str]:
        """The word of each id, from a list or a tensor of one dimension."""
        ids = list(ids.tolist() if hasattr(ids, "tolist") else ids)
        for id in ids:
            if not 0 <= id < len(self):
                raise ValueError(
                    f"ids must be between 0 and {len(self) - 1}, got {id}; take out padding before decoding"
                )
        return [self.words[id] for id in ids]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._id_of

    def __repr__(self) -> str:
        return f"Lexicon({len(self)} words, {self.num_specials} of them special, {self.hash[:8]})"

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return _Ids(zip(self.words, range(len(self)), strict=True))

    @property
    def _body(self) -> str:
        return "".join(f"{word}\t{count}\n" for word, count in zip(self.words, self.counts, strict=True))


class _Ids(dict[str, int]):
    """Ids by word. Asked for an unknown word it gives the id of "<unk>", which is quicker than `get` with a default."""

    def __missing__(self, word: str) -> int:
        return self[UNK]


def _state(num_specials: int, num_words: int, body: str) -> str:
    return f"{VERSION} {num_specials} {num_words}\n{body}"


def _parse_head(head: str, path: str | os.PathLike[str]) -> tuple[int, int, str]:
    fields = dict(field.split(" ", 1) for field in head.split("\t") if " " in field)
    if "anymax-lexicon" not in fields:
        raise ValueError(f"{path} is not a lexicon: it must begin with 'anymax-lexicon', but begins with {head[:40]!r}")
    if fields["anymax-lexicon"] != str(VERSION):
        raise ValueError(
            f"{path} is a lexicon of version {fields['anymax-lexicon'][:40]}, this anymax reads version {VERSION}; "
            "make the lexicon again or use the anymax that wrote it"
        )
    try:
        return int(fields["specials"]), int(fields["words"]), fields["sha256"]
    except (KeyError, ValueError):
        raise ValueError(f"{path} was changed or cut: its first line is damaged; make the lexicon again") from None


def _made_up_words(number: int, taken: Mapping[str, int]) -> list[str]:
    made_up: list[str] = []
    suffix = 0
    while len(made_up) < number:
        word = f"<made-up-{suffix}>"
        suffix += 1
        if word not in taken:
            made_up.append(word)
    return made_up


def _check_word(word: str) -> None:
    if not isinstance(word, str):
        raise TypeError(f"words must be strings, got {word!r}")
    if not word or "\t" in word or "\n" in word or "\r" in word:
        raise ValueError(f"words must not be empty or hold tabs or line ends, got {word!r}; split the text further")


def _check_specials(specials: tuple[str, ...]) -> None:
    missing = [word for word in (EOS, UNK) if word not in specials]
    if missing:
        raise ValueError(f"specials must hold {EOS!r} and {UNK!r}, got {specials}; add {' and '.join(missing)}")
    if len(set(specials)) != len(specials):
        raise ValueError(f"specials must differ from each other, got {specials}")


def _check_falling(words: tuple[str, ...], counts: tuple[int, ...], num_specials: int) -> None:
    for word, count in zip(words, counts, strict=True):
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"counts must be integers, got {count!r} for {word!r}")
        if count < 0:
            raise ValueError(f"counts must not be negative, got {count} for {word!r}")
        # Torch has no larger integers.
        if count >= 1 << 63:
            raise ValueError(f"counts must be below 2**63, got one of {count.bit_length()} bits for {word!r}")
    for word, (before, after) in zip(words[num_specials + 1 :], pairwise(counts[num_specials:]), strict=True):
        if after > before:
            raise ValueError(
                f"counts must fall from word to word after the {num_specials} special ones, but rise from {before} to "
                f"{after} at {word!r}; Lexicon.from_counts sorts them"
            )
