"""Files that anybody may have put there: none is waited for, and none without an end is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


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
