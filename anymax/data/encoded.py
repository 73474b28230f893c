"""A corpus as ids in a file that is mapped into memory: encoded once, opened at once ever after."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import sys
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from anymax.data.corpus import Corpus, Split
from anymax.data.lexicon import Lexicon
from anymax.data.writing import replacing

FORMAT = 1
# Room for the description before the ids; keeps them aligned.
HEAD_BYTES = 4096
# How many ids are held before they are written.
HELD_TOKENS = 1 << 18
TYPES = {"uint16": torch.uint16, "int32": torch.int32}
TYPE_CODES = {"uint16": "H", "int32": "i"}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Encoded:
    """A split as ids.

    Args:
        path: the file it lies in.
        num_tokens: how many ids, one "<eos>" per line included.
        num_lines: how many lines.
        num_unknown: how many ids are that of "<unk>", whether the text says so or the lexicon lacks the word.
        dtype: "uint16" where the lexicon fits into it, else "int32".
        lexicon_hash: of the lexicon it was encoded with.
        tokens_hash: the sha256 of the ids, which tells whether two machines hold the same text.
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
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=TYPES[self.dtype], count=self.num_tokens, offset=HEAD_BYTES)

    def __len__(self) -> int:
        return self.num_tokens


def encode(
    corpus: Corpus,
    split: Split,
    lexicon: Lexicon,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """A split of a corpus as ids, from the cache where it was encoded before.

    It is encoded again when the lexicon or the way to split lines is another, or when a file's size or time of change
    differs. The text is never held whole, only a line and some ids.

    Args:
        cache: the folder for encoded files; by default `default_cache()`.
        progress: called now and then with the lines and tokens encoded so far, and once at the end.
    """
    source = corpus.source(split)
    what = "\0".join([str(FORMAT), sys.byteorder, source.place(), corpus.splitting, lexicon.hash])
    # A name may hold marks that file names may not.
    plain = re.sub(r"[^\w.-]", "_", corpus.name)
    name = f"{plain}-{split}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.tokens"
    path = Path(default_cache() if cache is None else cache) / name
    fingerprint = source.fingerprint()
    found = _read(path, fingerprint)
    if found is not None:
        return found
    with replacing(path) as file:
        file.write(bytes(HEAD_BYTES))
        encoded = _write_tokens(file, path, corpus, split, lexicon, progress or _silent)
        if source.fingerprint() != fingerprint:
            raise RuntimeError(f"the text of {corpus.name} {split} was changed while it was read; encode it again")
        file.seek(0)
        file.write(_head(encoded, fingerprint))
    return encoded


def default_cache() -> Path:
    """The folder for encoded files: the environment variable ANYMAX_CACHE, else `anymax` in the user's cache folder."""
    if chosen := os.environ.get("ANYMAX_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anymax"


def _write_tokens(
    file: BinaryIO, path: Path, corpus: Corpus, split: Split, lexicon: Lexicon, progress: Progress
) -> Encoded:
    dtype = "uint16" if len(lexicon) <= 1 << 16 else "int32"
    held, digest = array(TYPE_CODES[dtype]), hashlib.sha256()
    num_tokens = num_lines = num_unknown = 0
    eos, unk = lexicon.eos, lexicon.unk

    def flush() -> None:
        nonlocal num_tokens
        file.write(held)
        digest.update(held)
        num_tokens += len(held)
        del held[:]
        progress(num_lines, num_tokens)

    for words in corpus.sentences(split):
        ids = lexicon.encode(words)
        num_unknown += ids.count(unk)
        num_lines += 1
        held.extend(ids)
        held.append(eos)
        if len(held) >= HELD_TOKENS:
            flush()
    flush()
    return Encoded(path, num_tokens, num_lines, num_unknown, dtype, lexicon.hash, digest.hexdigest())


def _silent(num_lines: int, num_tokens: int) -> None:
    """Nobody asked for progress."""


def _head(encoded: Encoded, fingerprint: str) -> bytes:
    fields = {**asdict(encoded), "path": None, "source": _digest(fingerprint)}
    head = json.dumps(fields).encode()
    assert len(head) <= HEAD_BYTES
    return head.ljust(HEAD_BYTES, b"\n")


def _read(path: Path, fingerprint: str) -> Encoded | None:
    """What an earlier call wrote; None where nothing usable lies there."""
    if not path.exists():
        return None
    with open(path, "rb") as file:
        try:
            fields = json.loads(file.read(HEAD_BYTES))
        except ValueError:
            return None
    if fields.pop("source") != _digest(fingerprint):
        return None
    encoded = Encoded(**{**fields, "path": path})
    whole = HEAD_BYTES + encoded.num_tokens * TYPES[encoded.dtype].itemsize
    return encoded if path.stat().st_size == whole else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
