"""The public names of anymax, read from the packages themselves."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import anymax


@functools.cache
def packages() -> dict[str, ModuleType]:
    """Every module with public names of its own by its import path: folders of anymax, and modules such a folder lists."""
    found: dict[str, ModuleType] = {}
    for folder in sorted(info.name for info in pkgutil.iter_modules(anymax.__path__) if info.ispkg):
        module = importlib.import_module(f"anymax.{folder}")
        listed = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        found |= {value.__name__: value for value in listed.values() if inspect.ismodule(value)}
        if any(not inspect.ismodule(value) for value in listed.values()):
            found[module.__name__] = module
    return dict(sorted(found.items()))


def names(module: ModuleType) -> list[str]:
    """What a package lists: classes first, then functions and other values, each in the order of the alphabet."""
    return sorted(module.__all__, key=lambda name: (not inspect.isclass(getattr(module, name)), name.lower(), name))


@functools.cache
def homes() -> dict[str, list[str]]:
    """The packages that list a name, by the name."""
    found: dict[str, list[str]] = {}
    for path, module in packages().items():
        for name in names(module):
            found.setdefault(name, []).append(path)
    return found


def short_names() -> Iterator[tuple[str, str]]:
    """The names of the top level, each with the package it comes from."""
    for name in anymax.__all__:
        for path in homes().get(name, []):
            if getattr(packages()[path], name) is getattr(anymax, name):
                yield name, path


def has_docstring(value: object) -> bool:
    """Whether a name is a class or a function; a constant, or a name for other types, has no docstring of its own."""
    return inspect.isclass(value) or inspect.isroutine(value)


def summary(docstring: str) -> str:
    """The first paragraph, in one line."""
    return " ".join(inspect.cleandoc(docstring).partition("\n\n")[0].split())
