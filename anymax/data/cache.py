"""The folder for what is made of corpora once and used ever after: counts, lexicons, pieces, encoded files."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

# To be raised when a text would give other words, units or ids than before.
FORMAT = 2


class Saved(Protocol):
    """What can be written to a file."""

    def save(self, path: str | os.PathLike[str]) -> None: ...


Made = TypeVar("Made", bound=Saved)


def default_cache() -> Path:
    """The folder for encoded files: the environment variable ANYMAX_CACHE, else `anymax` in the user's cache folder."""
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
    """A name without the marks that file names may not hold."""
    return re.sub(r"[^\w.-]", "_", name)


def digest(*parts: object) -> str:
    """A short text that differs where a part differs, for the names of files."""
    return hashlib.sha256("\0".join(map(str, (FORMAT, *parts))).encode()).hexdigest()[:16]
