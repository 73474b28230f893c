"""Files that may come from anyone: none is waited for, none without an end is read, and errors name the file.

Files of ours are written so that they are there whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from torch import Tensor


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class DamagedError(ValueError):
    """A file that is not as it was written."""


def check_file(path: str | os.PathLike[str], what: str) -> None:
    """Refuse what is no regular file: a pipe or a device may never end, and is read only once.

    Args:
        what: what the file should be, such as "a text file".
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            raise FileNotFoundError(
                f"{path} is a link to {os.readlink(path)}, which does not exist; mend the link, or name another file"
            ) from None
        raise FileNotFoundError(f"{path} does not exist; check the name, or bring {what} there") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder, {what} is needed; name one of the files in it")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise ValueError(f"{path} must be {what}, got {kind}; write its content to a file and name that")


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    if not file.is_file():
        raise DamagedError(f"{file} is {'no regular file' if file.exists() else 'missing'}")
    try:
        values = json.loads(file.read_bytes())
    except RecursionError:
        raise DamagedError(f"{file} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise DamagedError(f"{file} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise DamagedError(f"{file} is damaged: it must hold an object, got a {type(values).__name__}")
    return values


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped into memory; a file that is damaged is a ValueError."""
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        # The package opens no file whose name is not UTF-8.
        is_utf8 = str(path).encode(errors="ignore") == os.fsencode(path)
        return load_file(path) if is_utf8 else load(Path(path).read_bytes())
    # Those besides SafetensorError are for dtypes and shapes that torch does not have.
    except (SafetensorError, ValueError, LookupError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file under a temporary name in the same folder, which takes the place of `path` when all went well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _create_beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _create_beside(path: Path) -> tuple[Path, int]:
    """A new file and its descriptor. The system applies the umask, which a process can only read by changing it."""
    while True:
        # Without the name of the file, which may be as long as names can be.
        temporary = path.with_name(f".{secrets.token_hex(8)}.part")
        with contextlib.suppress(FileExistsError):
            return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
