"""Recipes: functions without arguments that return a complete RunConfig; one file per paper or data set.

A public function that takes arguments is what recipes of its file are made with, and is not listed.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anymax.training.config import RunConfig

__all__ = ["find", "names"]

# What has no type at run time, since nothing is imported before it is asked for.
Recipe = Callable[[], "RunConfig"]


def names() -> list[str]:
    """All recipes as file.function, those of a file in its order."""
    return [name for name, _ in _recipes()]


def find(name: str) -> Recipe:
    """The function of a recipe; its docstring tells in a line what it is."""
    known = dict(_recipes())
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        advice = f"perhaps {' or '.join(near)}" if near else "anymax recipes lists them"
        raise ValueError(f"recipe must be the name of one, got {name!r}; {advice}")
    return known[name]


def _recipes() -> Iterator[tuple[str, Recipe]]:
    for file in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{file}")
        for name, value in vars(module).items():
            is_own = inspect.isfunction(value) and value.__module__ == module.__name__
            if is_own and not name.startswith("_") and not inspect.signature(value).parameters:
                yield f"{file}.{name}", value
