"""The pages of the API reference and of the command line, written when the site is built."""

import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from docstrings import Links, converted
from public_names import has_docstring, names, packages, short_names, summary

import anymax
from anymax import cli

# As wide as the page.
COLUMNS = 84


def write(folder: Path) -> None:
    """Write a page for each package with public names, one for the top level, and one for the command line."""
    pages = {path: _package(path, module) for path, module in packages().items()}
    pages |= {"anymax": _top_level(), "cli": _command_line()}
    for stale in folder.glob("*.rst"):
        if stale.stem not in pages:
            stale.unlink()
    for name, text in pages.items():
        page = folder / f"{name}.rst"
        # A page that did not change is not read again.
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def contents() -> str:
    """What the index of the reference lists, as Markdown; the pages themselves are written by `write`."""
    rows = [
        (f"[`{path}`]({path}.rst)", len(names(module)), summary(module.__doc__ or ""))
        for path, module in packages().items()
    ]
    top = ("[`anymax`](anymax.rst)", len(list(short_names())), "Short import paths of the names that are typed most.")
    table = "\n".join(f"| {path} | {number} | {about} |" for path, number, about in [top, *rows])
    tree = "\n".join(["anymax", *packages(), "cli"])
    return (
        f"\n\n| package | names | |\n|---|---:|---|\n{table}\n\n"
        f"The command line: [every verb with its options](cli.rst).\n\n"
        f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


def _package(path: str, module: ModuleType) -> str:
    public = [name for name in names(module) if not inspect.ismodule(getattr(module, name))]
    overview = _table((f":py:obj:`{name} <{path}.{name}>`", _about(path, getattr(module, name))) for name in public)
    entries = "\n".join(_entry(path, name, getattr(module, name)) for name in public)
    return f"{_title(path)}.. automodule:: {path}\n\n{overview}\n{entries}"


def _entry(path: str, name: str, value: object) -> str:
    if not has_docstring(value):
        shown = re.sub(r"\banymax(?:\.\w+)+\.(\w+)", r"\1", str(value))
        return f".. py:data:: {name}\n\n   ``{shown}``\n"
    if not inspect.isclass(value):
        return f".. autofunction:: {path}::{name}\n"
    for field in getattr(value, "_fields", ()):
        # "Alias for field number 0", by which a field without a docstring would count as described.
        vars(value)[field].__doc__ = None
    bases = "" if value.__bases__ == (object,) else "   :show-inheritance:\n"
    return f".. autoclass:: {path}::{name}\n   :members:\n{bases}"


def _about(path: str, value: object) -> str:
    if not has_docstring(value):
        return "A name for other types." if not isinstance(value, tuple) else "A constant."
    return " ".join(converted([summary(value.__doc__ or "")], Links(path)))


def _top_level() -> str:
    rows = [
        (f":py:obj:`anymax.{name} <{path}.{name}>`", f":py:mod:`{path}`", _about(path, getattr(anymax, name)))
        for name, path in short_names()
    ]
    about = "What people type most has a short import path, here with the package where it is described."
    return f"{_title('anymax, the short names')}.. py:module:: anymax\n\n{about}\n\n{_table(rows)}"


def _command_line() -> str:
    parts = [_title("The command line", "="), "What each verb prints with ``--help``.\n"]
    for words in _verbs(()):
        help_text = "\n".join(f"   {line}".rstrip() for line in _help(words).splitlines())
        parts.append(f"{_title(' '.join(['anymax', *words]), '-')}.. code-block:: text\n\n{help_text}\n")
    return "\n".join(parts)


def _verbs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every verb and what stands below it, read from the usage line of what stands above."""
    yield words
    usage = re.match(r"usage: anymax[\w ]*\[-h\] \{([\w,-]+)\}", _help(words))
    for word in usage[1].split(",") if usage else []:
        yield from _verbs((*words, word))


def _help(words: tuple[str, ...]) -> str:
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            cli.main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return printed.getvalue()


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _table(rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    cells = ["   * - " + "\n     - ".join(row) for row in rows]
    return "\n".join([".. list-table::", "   :widths: auto", "   :class: names", "", *cells, ""])
