"""Pictures: small images in rows and columns, as a page shows them."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True)
class Picture:
    """A grey image.

    Args:
        width: how many pixels a row has.
        pixels: a byte for each, row by row; 0 is black.

    Example:
        >>> from anymax.display import Picture
        >>> picture = Picture(width=2, pixels=bytes([0, 255, 255, 0]))
        >>> picture.height, picture.png()[1:4]
        (2, b'PNG')
    """

    width: int
    pixels: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.pixels or len(self.pixels) % self.width:
            raise ValueError(f"pixels must be rows of {self.width}, got {len(self.pixels)}")

    @property
    def height(self) -> int:
        return len(self.pixels) // self.width

    def png(self) -> bytes:
        """The image as a file."""
        rows = (self.pixels[begin : begin + self.width] for begin in range(0, len(self.pixels), self.width))
        # Each row begins with the number of a filter, of which 0 is none.
        data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
        # Eight bits a pixel, grey, and the only compression, filter and order that there are.
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 0, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)

    def html(self, text: str) -> str:
        """The image as an element that needs no file, with what a reader hears who does not see it."""
        encoded = base64.b64encode(self.png()).decode()
        size = f'width="{self.width}" height="{self.height}"'
        return f'<img alt="{escape(text)}" title="{escape(text)}" {size} src="data:image/png;base64,{encoded}">'


@dataclass(frozen=True)
class Pictures:
    """Images in rows.

    Args:
        title: above the images.
        rows: what each row is, and its images.
        columns: what each column is; empty where they are nothing of their own.
        source: what they were made from.
        note: what a reader needs to understand them.

    Example:
        >>> from anymax.display import Picture, Pictures
        >>> dark, light = (Picture(2, bytes([level] * 4)) for level in (0, 255))
        >>> Pictures("By class", rows=(("zero", (dark, light)),), columns=("first", "second")).as_dict()["rows"]
        [{'name': 'zero', 'images': 2}]
    """

    title: str
    rows: tuple[tuple[str, tuple[Picture, ...]], ...]
    columns: tuple[str, ...] = ()
    source: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; images as their pixels would be long, so their number alone."""
        rows = [{"name": name, "images": len(images)} for name, images in self.rows]
        return {"kind": "pictures", "title": self.title, "rows": rows, "columns": list(self.columns)}

    def html(self) -> str:
        """A table of images."""
        heads = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        head = f"<thead><tr><td></td>{heads}</tr></thead>" if self.columns else ""
        body = "".join(self._row(name, images) for name, images in self.rows)
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        source = f'<p class="source">from {escape(self.source)}</p>' if self.source else ""
        return (
            f'<figure class="pictures"><figcaption>{escape(self.title)}</figcaption>'
            f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>{note}{source}</figure>'
        )

    def _row(self, name: str, images: tuple[Picture, ...]) -> str:
        columns = self.columns or [str(number) for number in range(1, len(images) + 1)]
        cells = "".join(
            f"<td>{image.html(f'{name}, {column}' if name else column)}</td>"
            for image, column in zip(images, columns, strict=True)
        )
        return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
