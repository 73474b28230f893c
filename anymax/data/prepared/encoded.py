"""A corpus as ids in a file that is mapped into memory: encoded once, and found again only where its hash fits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from anymax.data.prepared.cache import default_cache, digest, plain_name
from anymax.data.text.corpus import Corpus, Split
from anymax.data.units.lexicon import Lexicon
from anymax.data.units.units import Units
from anymax.data.units.word_pieces import WordPieces
from anymax.files import replacing

# Room for the description before the ids; keeps them aligned.
HEAD_BYTES = 4096
# How many ids are held before they are written.
HELD_TOKENS = 1 << 16
TYPES = {"uint16": torch.uint16, "int32": torch.int32}
TYPE_CODES = {"uint16": "H", "int32": "i"}
# Behind the name of a file of ids: what the file was when its ids were last hashed.
VERIFIED = ".verified"
# Nanoseconds that a file must be unchanged before its hash is remembered: a later change then has another time, even
# on file systems whose times are coarse.
SETTLED = 2_000_000_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Encoded:
    """A split as ids.

    Args:
        path: the file it lies in.
        num_tokens: how many ids, one "<eos>" per line included.
        num_lines: how many lines.
        num_unknown: how many ids are that of "<unk>", whether the text says so or the word is not known.
        dtype: "uint16" where the lexicon fits into it, else "int32".
        lexicon_hash: of the lexicon it was encoded with.
        tokens_hash: the sha256 of the ids, to check whether two machines hold the same text.

    Example:
        >>> from anymax.data import Lexicon, corpus_of_lines, encode
        >>> corpus = corpus_of_lines("poem", ["roses are red", "violets are blue"], valid=0, test=0)
        >>> encoded = encode(corpus, "train", Lexicon.from_words(corpus.words("train")), cache="cache")
        >>> encoded.num_tokens, encoded.num_lines, encoded.num_unknown
        (8, 2, 0)
        >>> encoded.tokens().tolist()
        [5, 2, 4, 0, 6, 2, 3, 0]
    """

    path: Path
    num_tokens: int
    num_lines: int
    num_unknown: int
    dtype: str
    lexicon_hash: str
    tokens_hash: str

    def tokens(self) -> Tensor:
        """All ids, mapped from the file and read when touched; take slices and convert those with `.long()`.

        Writing into it changes this process's copy only.
        """
        with open(self.path, "rb") as file:
            if (_read_head(file) or {}).get("tokens_hash") != self.tokens_hash:
                raise ValueError(f"{self.path} must hold the ids it was opened with, but was replaced; open it again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=TYPES[self.dtype], count=self.num_tokens, offset=HEAD_BYTES)

    def __len__(self) -> int:
        return self.num_tokens


def encode(
    corpus: Corpus,
    split: Split,
    units: Lexicon | Units,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """A split of a corpus as ids, from the cache where it was encoded before.

    It is encoded again when the units or the way to split lines are others, when a file's size or time of change
    differs, or when the ids in the cache do not have the hash they were written with. Ids are hashed once for each
    change of their file. The text is never held whole, only a line and some ids.

    Args:
        corpus: the text.
        split: which of its splits.
        units: a lexicon of words, or what else the ids stand for.
        cache: the folder for encoded files; by default `default_cache()`.
        progress: called now and then with the lines and tokens encoded so far, and once at the end.

    Example:
        >>> from anymax.data import Lexicon, corpus_of_lines, encode
        >>> corpus = corpus_of_lines("poem", ["roses are red", "violets are blue"], valid=0, test=0)
        >>> lexicon = Lexicon.from_words(corpus.words("train"))
        >>> encoded = encode(corpus, "train", lexicon, cache="cache")
        >>> lexicon.decode(encoded.tokens()[:4])
        ['roses', 'are', 'red', '<eos>']
    """
    units = units if isinstance(units, Units) else Units(units, units)
    lexicon, ids_of = units.lexicon, units.encode
    eos = lexicon.eos

    def lines() -> Iterator[list[int]]:
        return ([*ids_of(words), eos] for words in corpus.sentences(split))

    return _encode(
        corpus,
        split,
        lines,
        _Coded(corpus.splitting, units.hash, lexicon.hash, len(lexicon), lexicon.unk),
        cache=cache,
        progress=progress,
    )


def encode_pieces(
    corpus: Corpus,
    split: Split,
    pieces: WordPieces,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """The lines of a split as ids of word pieces with "[SEP]" behind each, kept as `encode` keeps them.

    Lines without words are left out. The corpus does not split them: the pieces do.
    """
    sep = pieces.sep

    def lines() -> Iterator[list[int]]:
        return ([*ids, sep] for line in corpus.source(split).lines() if (ids := pieces.encode(line)))

    coded = _Coded("word pieces", pieces.hash, pieces.hash, len(pieces), pieces.unk)
    return _encode(corpus, split, lines, coded, cache=cache, progress=progress)


def encode_parts(
    corpus: Corpus,
    split: Split,
    pieces: WordPieces,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """The lines of a split as ids of word pieces with "<T>" behind each, kept as `encode` keeps them.

    Parts of a line that tabs separate have "[SEP]" between them.
    """
    sep, last = pieces.sep, pieces.last

    def lines() -> Iterator[list[int]]:
        for line in corpus.source(split).lines():
            ids = [id for part in line.split("\t") for id in (*pieces.encode(part), sep)]
            yield [*ids[:-1], last]

    coded = _Coded("parts in word pieces", pieces.hash, pieces.hash, len(pieces), pieces.unk)
    return _encode(corpus, split, lines, coded, cache=cache, progress=progress)


@dataclass(frozen=True)
class _Coded:
    """What lines of a text are coded in.

    Args:
        splitting: how lines become words.
        hash: of all that decides ids.
        lexicon_hash: of what the ids stand for.
        size: how many ids there are.
        unk: the one of what is not known.
    """

    splitting: str
    hash: str
    lexicon_hash: str
    size: int
    unk: int


def _encode(
    corpus: Corpus,
    split: Split,
    lines: Callable[[], Iterator[list[int]]],
    coded: _Coded,
    *,
    cache: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Encoded:
    source = corpus.source(split)
    what = digest(sys.byteorder, source.place(), coded.splitting, coded.hash)
    path = Path(default_cache() if cache is None else cache) / f"{plain_name(corpus.name)}-{split}-{what}.tokens"
    fingerprint = source.fingerprint()
    found = _read(path, fingerprint, coded.lexicon_hash)
    if found is not None:
        return found
    with replacing(path) as file:
        file.write(bytes(HEAD_BYTES))
        encoded = _write_tokens(file, path, lines(), coded, progress or silent)
        if source.fingerprint() != fingerprint:
            raise ValueError(f"the text of {corpus.name} {split} was changed while it was read; encode it again")
        file.seek(0)
        file.write(_head(encoded, fingerprint))
    return encoded


def _write_tokens(file: BinaryIO, path: Path, lines: Iterator[list[int]], coded: _Coded, progress: Progress) -> Encoded:
    dtype = "uint16" if coded.size <= 1 << 16 else "int32"
    held: list[int] = []
    hashed = hashlib.sha256()
    num_tokens = num_lines = num_unknown = 0

    def flush() -> None:
        nonlocal num_tokens, num_unknown
        ids = array(TYPE_CODES[dtype], held)
        file.write(ids)
        hashed.update(ids)
        num_tokens += len(held)
        num_unknown += held.count(coded.unk)
        held.clear()
        progress(num_lines, num_tokens)

    for ids in lines:
        held += ids
        num_lines += 1
        if len(held) >= HELD_TOKENS:
            flush()
    flush()
    return Encoded(path, num_tokens, num_lines, num_unknown, dtype, coded.lexicon_hash, hashed.hexdigest())


def silent(num_lines: int, num_tokens: int) -> None:
    """Progress that is not shown."""


def _head(encoded: Encoded, fingerprint: str) -> bytes:
    fields = {**asdict(encoded), "path": None, "source": digest(fingerprint)}
    head = json.dumps({**fields, "sha256": _digest_of_head(fields)}).encode()
    assert len(head) <= HEAD_BYTES
    return head.ljust(HEAD_BYTES, b"\n")


def _read_head(file: BinaryIO) -> dict[str, Any] | None:
    """The fields as they were written; None where they were changed since."""
    try:
        fields = json.loads(file.read(HEAD_BYTES))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.pop("sha256", None) != _digest_of_head(fields):
        return None
    return fields


def _digest_of_head(fields: dict[str, Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True))


def _read(path: Path, fingerprint: str, lexicon_hash: str) -> Encoded | None:
    """What an earlier call wrote; None where it is missing, of another text or other units, or damaged."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        fields = _read_head(file)
        if fields is None or (fields.pop("source"), fields["lexicon_hash"]) != (digest(fingerprint), lexicon_hash):
            return None
        encoded = Encoded(**{**fields, "path": path})
        return encoded if _is_verified(path, file, encoded.tokens_hash) else None


def _is_verified(path: Path, file: BufferedReader, tokens_hash: str) -> bool:
    """Whether the ids have their hash, by hashing all of them where the file was changed since that was last done."""
    state, now = _state(file), time.time_ns()
    memory = path.with_name(path.name + VERIFIED)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if json.loads(memory.read_bytes()) == state:
            return True
    if _hash_of_ids(file) != tokens_hash:
        return False
    if _state(file) == state and now - max(state["ctime_ns"], state["mtime_ns"]) > SETTLED:
        # A cache that cannot be written to is hashed every time, and so is one whose memory was cut off in a crash.
        with contextlib.suppress(OSError):
            memory.write_text(json.dumps(state) + "\n")
    return True


def _state(file: BinaryIO) -> dict[str, int]:
    """What differs after every change of a file. Its time of modification can be set back, that of change cannot."""
    stat = os.fstat(file.fileno())
    return {"bytes": stat.st_size, "inode": stat.st_ino, "mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}


def _hash_of_ids(file: BufferedReader) -> str:
    file.seek(HEAD_BYTES)
    return hashlib.file_digest(file, "sha256").hexdigest()
