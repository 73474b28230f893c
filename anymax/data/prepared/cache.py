"""The folder for what is made of corpora once and used ever after: counts, lexicons, subwords, encoded files."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

# To be raised when a text would give other words, units or ids than before.
FORMAT = 3
# Bytes of a corpus's name in the names of files, of which file systems take 255.
MOST_OF_NAME = 100


class Saved(Protocol):
    """What can be written to a file."""

    def save(self, path: str | os.PathLike[str]) -> None: ...


Made = TypeVar("Made", bound=Saved)


def default_cache() -> Path:
    """The folder for encoded files: the environment variable ANYMAX_CACHE, else `anymax` in the user's cache folder.

    Example:
        >>> from anymax.data import default_cache
        >>> default_cache().is_absolute()
        True
    """
    if chosen := os.environ.get("ANYMAX_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anymax"


def kept(path: Path, load: Callable[[Path], Made], make: Callable[[], Made]) -> Made:
    """What an earlier call wrote to `path`; where there is nothing, or nothing whole, it is made and written."""
    if path.exists():
        with contextlib.suppress(ValueError):
            return load(path)
    made = make()
    made.save(path)
    return made


def plain_name(name: str) -> str:
    """A name without the marks that file names may not hold, and not too long for one."""
    return re.sub(r"[^\w.-]", "_", name).encode()[:MOST_OF_NAME].decode(errors="ignore")


def digest(*parts: object) -> str:
    """A short text that differs where a part differs, for the names of files."""
    # Names of files need not be UTF-8; Python writes their other bytes as surrogates.
    return hashlib.sha256("\0".join(map(str, (FORMAT, *parts))).encode(errors="surrogatepass")).hexdigest()[:16]
