"""Text of files on a terminal, which takes some characters for commands."""

import re

# Control characters but for tab and line end, marks that reverse the direction of what follows, and what is no
# character: bytes of a file's name that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The same text with what a terminal would obey written out, as \x1b; line ends and tabs stay."""
    return _UNSAFE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
