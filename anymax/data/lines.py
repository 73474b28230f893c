"""Lines of text files, plain or gzip, one at a time, with errors that name the file and the place.

A line ends at a newline and nowhere else: form feeds and Unicode's own line separators stay inside it.
"""

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_lines(path: str | os.PathLike[str], *, encoding: str = "utf-8") -> Iterator[str]:
    r"""The lines of a file without their ends ("\n" or "\r\n"), held one at a time.

    A file that begins as gzip does is unpacked, whatever its name. One without a word is refused at its end.

    Args:
        encoding: how characters are written; any in which a newline is the single byte 10, so not UTF-16.
    """
    try:
        newline = "\n".encode(encoding)
    except LookupError:
        raise ValueError(
            f"encoding must be one that Python knows, got {encoding!r}; most texts are in utf-8 or latin-1"
        ) from None
    if newline != b"\n":
        raise ValueError(f"encoding must write a newline as one byte, {encoding!r} does not; convert the text to UTF-8")
    return _read_lines(Path(path), encoding)


def _read_lines(path: Path, encoding: str) -> Iterator[str]:
    position, has_words = 0, False
    with _open_bytes(path) as file:
        for number, raw in enumerate(_unpacked(file, path), start=1):
            marked = number == 1 and raw.startswith(BYTE_ORDER_MARK) and encoding.lower() in ("utf-8", "utf8")
            skipped = len(BYTE_ORDER_MARK) if marked else 0
            line = _decoded(raw[skipped:], encoding, path, number, position + skipped)
            has_words = has_words or bool(line.strip())
            position += len(raw)
            yield line.removesuffix("\n").removesuffix("\r")
    if not has_words:
        raise ValueError(f"{path} is empty: a text must hold at least one word; check that it was written completely")


@contextlib.contextmanager
def _open_bytes(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, a text file is needed; name one of the files in it")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the name, or bring the text there")
    with open(path, "rb") as plain:
        packed = plain.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        plain.seek(0)
        if not packed:
            yield plain
            return
        with gzip.open(plain) as unpacked:
            yield io.BufferedReader(unpacked)


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or was cut: it cannot be unpacked ({error}); bring it anew") from error


def _decoded(raw: bytes, encoding: str, path: Path, number: int, position: int) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not {encoding}: byte 0x{raw[error.start]:02x} at position {position + error.start}, in line "
            f"{number}, cannot be read; name the encoding it is written in, such as encoding='latin-1', or convert it"
        ) from None
