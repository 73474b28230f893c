"""Lines of text files, plain or gzip, one at a time, with errors that name the file and the place.

A line ends at a newline and nowhere else: form feeds and Unicode's own line separators stay inside it.
"""

import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from anymax.files import check_file

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Bytes of a line, which is held whole: more than the 100 MB that text8 has on its only line, and a bound on what a
# small packed file can unpack to before it is refused.
MOST_OF_LINE = 1 << 27
# A setting and its names in commands.
ENCODING = "encoding (--data.encoding; --encoding of `anymax prepare`)"


def open_lines(path: str | os.PathLike[str], *, encoding: str = "utf-8") -> Iterator[str]:
    r"""The lines of a file without their ends ("\n" or "\r\n"), held one at a time.

    A file that begins as gzip does is unpacked, whatever its name. One without a word is refused at its end, and a
    line of more than 128 MiB where it becomes longer. Pipes and devices are refused.

    Args:
        path: the file.
        encoding: how characters are written; any in which a newline is the single byte 10, so not UTF-16.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import open_lines
        >>> _ = Path("two.txt").write_text("first\nsecond\n")
        >>> list(open_lines("two.txt"))
        ['first', 'second']
    """
    return _read_lines(Path(path), _checked(encoding))


def check_lines(lines: Sequence[str]) -> None:
    """Refuse a text without lines, and a line without words."""
    if not lines:
        raise ValueError("lines must be one at least, got none")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ValueError(f"line {number} must hold words, got an empty line; leave it out")


def _checked(encoding: str) -> str:
    """The name that Python has for an encoding, or the reason that lines cannot be read in it."""
    try:
        # The mark that this one begins with is taken off in UTF-8 anyway.
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        newline = "\n".encode(name)
    except (LookupError, ValueError):
        raise ValueError(
            f"{ENCODING} must be one that Python knows, such as utf-8 or latin-1, got {encoding!r}"
        ) from None
    if newline != b"\n":
        raise ValueError(
            f"{ENCODING} must write a newline as one byte, {encoding!r} does not; convert the text to UTF-8"
        )
    return name


def _read_lines(path: Path, encoding: str) -> Iterator[str]:
    position, has_words = 0, False
    with _open_bytes(path) as file:
        for number, raw in enumerate(_unpacked(file, path), start=1):
            if len(raw) > MOST_OF_LINE:
                raise ValueError(
                    f"{path} must have lines of at most {MOST_OF_LINE:,} bytes, got a longer one, line {number}; put "
                    "line ends between its sentences or paragraphs, or check that it is text"
                )
            marked = number == 1 and raw.startswith(BYTE_ORDER_MARK) and encoding == "utf-8"
            skipped = len(BYTE_ORDER_MARK) if marked else 0
            line = _decoded(raw[skipped:], encoding, path, number, position + skipped)
            has_words = has_words or bool(line.strip())
            position += len(raw)
            yield line.removesuffix("\n").removesuffix("\r")
    if not has_words:
        raise ValueError(f"{path} is empty: a text must hold at least one word; check that it was written completely")


@contextlib.contextmanager
def _open_bytes(path: Path) -> Iterator[BinaryIO]:
    check_file(path, "a text file")
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
        while raw := file.readline(MOST_OF_LINE + 1):
            yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or was cut: it cannot be unpacked ({error}); bring it anew") from error


def _decoded(raw: bytes, encoding: str, path: Path, number: int, position: int) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeError as error:
        # A few encodings do not report the place.
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        raise ValueError(
            f"{path} is not {encoding}: byte 0x{raw[start]:02x} at position {position + start}, in line {number}, "
            "cannot be read; name the encoding it is written in, such as encoding='latin-1' (--data.encoding latin-1; "
            "--encoding of `anymax prepare`), or convert it"
        ) from None
