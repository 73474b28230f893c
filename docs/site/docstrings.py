"""Docstrings as Sphinx reads them: names in backticks link to what they name, displayed formulas stay as they are."""

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator

from public_names import homes, packages

_SPAN = re.compile(r"`([^`]+)`(\w?)")
_NAME = re.compile(r"[A-Za-z_][\w.]*(?=$|\(\)$)")
# What reStructuredText takes for markup where prose means the character.
_MARKUP = re.compile(r"[*|\\]|_(?!\w)|(?<!\w)_")
_SECTION = re.compile(r"[A-Z][a-z]+:")


def process(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """What autodoc calls with every docstring, to change in place."""
    inside = [path for path in packages() if name == path or name.startswith(f"{path}.")]
    lines[:] = converted(lines, Links(max(inside, key=len, default=""), _parameters(value)))


def _parameters(value: object) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


class Links:
    """Where a name in backticks leads to from a package: to its own names first, never from a parameter."""

    def __init__(self, package: str, parameters: Iterable[str] = ()) -> None:
        self.package = package
        self.parameters = set(parameters)

    def target(self, name: str) -> str | None:
        own = importlib.import_module(self.package).__all__ if self.package else ()
        found = [self.package] if name in own else homes().get(name, [])
        return f"{found[0]}.{name}" if len(found) == 1 and name not in self.parameters else None


def converted(lines: list[str], links: Links) -> list[str]:
    return list(_blocks(inspect.cleandoc("\n".join(lines)).splitlines(), links))


def _blocks(lines: list[str], links: Links) -> Iterator[str]:
    """Prose is converted; examples and what is displayed are not."""
    in_section = is_raw = False
    before = ""
    prose: list[str] = []
    for line in lines:
        if not line.startswith(" ") and line:
            in_section, is_raw = _SECTION.fullmatch(line) is not None, False
        displays = line.startswith("    ") and not before and not in_section
        if not line:
            is_raw = is_raw and not in_section
        elif line.lstrip().startswith(">>>") or displays:
            if displays and not is_raw:
                prose += ["::", ""]
            yield from _prose(prose, links)
            prose, is_raw = [], True
        if is_raw:
            yield line
        else:
            prose.append(line)
        before = line
    yield from _prose(prose, links)


def _prose(lines: list[str], links: Links) -> list[str]:
    """A span of code may go over the end of a line, so lines are converted together."""
    text, end = "\n".join(lines), 0
    parts = []
    for match in _SPAN.finditer(text):
        code, after = " ".join(match[1].split()), match[2] and f"\\ {match[2]}"
        parts += [_escaped(text[end : match.start()]), _code(code, links), after]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])]).split("\n") if lines else []


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", text)


def _code(code: str, links: Links) -> str:
    named = _NAME.match(code)
    target = links.target(named[0].removeprefix("anymax.")) if named else None
    return f":py:obj:`{code} <{target}>`" if target else f"``{code}``"
