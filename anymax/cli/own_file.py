"""Recipes and tasks of a user's own file: `anymax train my_task.py:recipe`, `anymax resume RUN --from my_task.py`.

A run folder never names a file to import: it is given on the command line or not at all.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamWConfig
from anymax.training.optim.schedules import Constant
from anymax.training.task_config import TaskConfig

MARK = ".py:"
OPTION = "--from"
# A task that is given without a recipe is trained like this, but for what options change.
LR, STEPS = 1e-3, 1000


def is_own(recipe: str) -> bool:
    """Whether a recipe is one of a user's own file, as my_task.py:recipe."""
    return MARK in recipe


def file_of(recipe: str) -> Path:
    """The file of such a recipe."""
    return Path(recipe[: recipe.index(MARK)] + MARK[:-1])


def plain_name(recipe: str) -> str:
    """The name of a recipe in names of folders: my_task.recipe for my_task.py:recipe."""
    return f"{file_of(recipe).stem}.{recipe.rpartition(':')[2]}" if is_own(recipe) else recipe


def find(recipe: str) -> Callable[[], RunConfig]:
    """The function of a recipe in a file: a function that returns a RunConfig, or a task's config or its class."""
    file, name = file_of(recipe), recipe.rpartition(":")[2]
    module = load(file)
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(
            f"{file} must have {name!r}, got {', '.join(names_in(file)) or 'no function'}; name one of those"
        )

    def build() -> RunConfig:
        made = found() if callable(found) else found
        if isinstance(made, TaskConfig):
            made = RunConfig(made, AdamWConfig(LR), Constant(), steps=STEPS)
        if not isinstance(made, RunConfig):
            raise ValueError(f"{recipe} must give a RunConfig or a TaskConfig, got {type(made).__name__}")
        return made

    build.__doc__ = inspect.getdoc(found)
    return build


def names_in(file: Path) -> list[str]:
    """The functions that a file defines."""
    module = load(file)
    functions = {own: value for own, value in vars(module).items() if inspect.isfunction(value)}
    return [own for own, value in functions.items() if value.__module__ == module.__name__]


def tasks_of(file: Path) -> tuple[type[TaskConfig], ...]:
    """The tasks that a file defines."""
    found = [value for value in vars(load(file)).values() if isinstance(value, type) and issubclass(value, TaskConfig)]
    return tuple(kind for kind in found if not inspect.isabstract(kind))


def take_option(options: Sequence[str]) -> tuple[tuple[type[TaskConfig], ...], list[str]]:
    """The tasks of the file that `--from FILE` names, and the other options."""
    file, rest = take_value(options, OPTION, "my_task.py")
    tasks = tasks_of(Path(file)) if file else ()
    if file and not tasks:
        raise ValueError(f"{file} must define a task, a subclass of TaskConfig, but has none; name the file that does")
    return tasks, rest


def take_value(options: Sequence[str], option: str, example: str) -> tuple[str, list[str]]:
    """The file that an option names, "" where it is not among them, and the other options."""
    for place, word in enumerate(options):
        name, _, value = word.partition("=")
        if name == option:
            given = value or next(iter(options[place + 1 :]), "")
            if not given:
                raise ValueError(f"{option} must be followed by a file, got nothing; write {option} {example}")
            return given, [*options[:place], *options[place + (1 if value else 2) :]]
    return "", list(options)


def load(file: Path) -> ModuleType:
    """The module of a file, run once."""
    if not file.is_file():
        raise ValueError(f"{file} must be a Python file, but there is none; check its name")
    return _load(file.resolve())


@cache
def _load(file: Path) -> ModuleType:
    name = f"anymax_own_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up the types of their fields there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
