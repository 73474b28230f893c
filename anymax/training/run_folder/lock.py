"""One process at a time writes to a run folder: a lock that is released when its process ends, however it ends.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO

LOCK = ".lock"


class BusyError(ValueError):
    """Another process is writing to the folder."""


class FolderLock:
    """The right to write to a folder, which is made where it is missing.

    Held by flock, so readers are not kept out, and a file system without locks keeps no process out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: list[Path] = []
        try:
            self._file = self._acquire()
        except BusyError:
            raise
        except OSError as error:
            self._remove_made()
            raise ValueError(f"folder must be writable, but {folder} is not: {error.strerror}; name another") from None

    def check(self) -> None:
        """Raise where the folder was removed or replaced since it was locked."""
        if not self._is_current(self._file):
            raise FileNotFoundError(
                f"{self.folder} was removed or replaced while a run was writing to it; nothing more can be saved there"
            )

    def release(self) -> None:
        """Let others write. A folder that was made here and is still empty is removed."""
        if self._is_current(self._file):
            self._path.unlink()
        self._file.close()
        self._remove_made()

    @property
    def _path(self) -> Path:
        return self.folder / LOCK

    def _acquire(self) -> IO[str]:
        while True:
            self._make()
            try:
                file = open(self._path, "a+")  # noqa: SIM115
            except FileNotFoundError:
                # Whoever made the folder has just removed it.
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with file:
                    raise BusyError(self._who(file)) from None
            except OSError:
                # The file system has no locks.
                pass
            if self._is_current(file):
                file.truncate(0)
                file.write(f"{os.getpid()} {socket.gethostname()}\n")
                file.flush()
                return file
            # Released and removed between opening and locking.
            file.close()

    def _make(self) -> None:
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._made += [path for path in missing if path not in self._made]

    def _remove_made(self) -> None:
        with contextlib.suppress(OSError):
            for path in self._made:
                path.rmdir()

    def _is_current(self, file: IO[str]) -> bool:
        """Whether the path still leads to the file that is locked."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _who(self, file: IO[str]) -> str:
        file.seek(0)
        pid, _, host = file.read().strip().partition(" ")
        where = "" if host in ("", socket.gethostname()) else f" on {host}"
        return (
            f"folder must be free, but process {pid or 'unknown'}{where} is writing to {self.folder}; wait until it "
            "ends, or name another folder"
        )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Hold the lock of a folder while the block runs."""
    lock = FolderLock(folder)
    try:
        yield lock
    finally:
        lock.release()


def lock_next(folder: Path) -> tuple[FolderLock, int]:
    """Lock the first folder that is new or empty: `folder`, `folder-2`, `folder-3`, ...; and which of them it is."""
    for number in count(1):
        path = numbered(folder, number)
        if not is_free(path):
            continue
        with contextlib.suppress(BusyError):
            lock = FolderLock(path)
            # Another process may have begun and ended a run since the first look.
            if is_free(path):
                return lock, number
            lock.release()
    raise AssertionError("there is always a next number")


def numbered(folder: Path, number: int) -> Path:
    """The folder, and from 2 on with a number behind its name."""
    return folder if number == 1 else folder.with_name(f"{folder.name}-{number}")


def is_free(folder: Path) -> bool:
    """Whether nothing is there but a lock and what writes left that were killed halfway."""
    if not folder.exists():
        return not folder.is_symlink()
    return folder.is_dir() and all(path.name == LOCK or path.match(".*.part") for path in folder.iterdir())
