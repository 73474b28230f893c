"""The public names of anymax, read from the packages themselves."""

import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import anymax
from anymax import lazy

FOLDER = Path(anymax.__path__[0])


def folders() -> list[str]:
    """The folders of anymax that list public names, found without importing them."""
    return [init.parent.name for init in sorted(FOLDER.glob("*/__init__.py")) if lazy.listed(init)]


@functools.cache
def packages_of(folder: str) -> dict[str, ModuleType]:
    """The packages in a folder that have public names, by their import path: itself, and modules that it lists."""
    module = importlib.import_module(f"anymax.{folder}")
    listed = [getattr(module, name) for name in module.__all__]
    inside = {value.__name__: value for value in listed if inspect.ismodule(value)}
    return inside if len(inside) == len(listed) else {module.__name__: module, **inside}


@functools.cache
def packages() -> dict[str, ModuleType]:
    """All packages that have public names, by their import path."""
    return {path: module for folder in folders() for path, module in packages_of(folder).items()}


def names(module: ModuleType) -> list[str]:
    """What a package lists: classes first, then functions and other values, each in the order of the alphabet."""
    return sorted(module.__all__, key=lambda name: (not inspect.isclass(getattr(module, name)), name.lower(), name))


@functools.cache
def homes() -> dict[str, list[str]]:
    """The folders that list a name, by the name, found without importing them; packages are no names."""
    found: dict[str, list[str]] = {}
    for folder in folders():
        for name in lazy.listed(FOLDER / folder / "__init__.py"):
            inside = FOLDER / folder / name / "__init__.py"
            if not (inside.exists() and lazy.listed(inside)):
                found.setdefault(name, []).append(f"anymax.{folder}")
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
