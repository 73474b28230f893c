"""Writing a file so that it is there whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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
