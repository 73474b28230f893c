"""Recipes: functions that return a complete RunConfig; one file per paper, data set or question.

A recipe takes no argument, or one that is a choice between names, as the estimator of a latent: `latent.ssvae` has its
default, `latent.ssvae.dense` another. A public function that takes other arguments is what recipes of its file are made
with, and is not listed.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from anymax.training.config import RunConfig

__all__ = ["About", "Choices", "about", "choices", "find", "names"]

# What has no type at run time, since nothing is imported before it is asked for.
Recipe = Callable[[], "RunConfig"]


class Choices(NamedTuple):
    """The argument of a recipe, and the names it may be given.

    Example:
        >>> from anymax.recipes import choices
        >>> found = choices("latent.ssvae")
        >>> found.argument, found.values[:2]
        ('estimator', ('sparse', 'dense'))
    """

    argument: str
    values: tuple[str, ...]


class About(NamedTuple):
    """What the recipes of a file have in common.

    Args:
        title: what they are, in a line.
        takes: how large their models are, and how long they train, roughly.
    """

    title: str
    takes: str


def about(name: str) -> About:
    """What a recipe has in common with the others of its file."""
    module = importlib.import_module(f"{__name__}.{name.partition('.')[0]}")
    title = (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    return About(title, module.TAKES)


def names() -> list[str]:
    """All recipes as file.function, those of a file in its order.

    Example:
        >>> from anymax import recipes
        >>> recipes.names()[:3]
        ['ape.transformer', 'ape.bert', 'ape.cross_copied']
    """
    return list(_recipes())


def choices(name: str) -> Choices | None:
    """What a recipe lets one choose; None for one without an argument.

    Args:
        name: of a recipe, as file.function.

    Example:
        >>> from anymax import recipes
        >>> "sum_and_sample" in recipes.choices("latent.ssvae").values
        True
        >>> recipes.choices("sotu.adaptive") is None
        True
    """
    return _choices(_function(name))


def find(name: str) -> Recipe:
    """The function of a recipe, or of a choice of one, as `latent.ssvae.dense`; its docstring describes it.

    Args:
        name: as file.function, and for a choice file.function.choice.

    Example:
        >>> from dataclasses import replace
        >>> from anymax import recipes
        >>> config = recipes.find("multi30k.learned_entmax")()
        >>> config.task.model.encoder_mapping
        LearnedEntmaxConfig(initial=None, low=1.0, high=2.0, clamp=None)
        >>> replace(config, seed=2).seed
        2
    """
    base, _, value = name.rpartition(".")
    if base in _recipes():
        offered = choices(base)
        if offered is None or value not in offered.values:
            known = "it has none" if offered is None else f"they are {', '.join(offered.values)}"
            raise ValueError(f"{name!r} must name a choice of the recipe {base}; {known}")
        function = partial(_function(base), value)
        function.__doc__ = _function(base).__doc__
        return function
    return _function(name)


def _function(name: str) -> Callable[..., Any]:
    known = _recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        advice = f"perhaps {' or '.join(near)}" if near else "anymax recipes lists them"
        raise ValueError(f"recipe must be the name of one, got {name!r}; {advice}")
    return known[name]


@cache
def _recipes() -> dict[str, Callable[..., Any]]:
    """All recipes by their names, as nothing adds one while a program runs."""
    found: dict[str, Callable[..., Any]] = {}
    for file in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{file}")
        found |= {f"{file}.{name}": function for name, function in _own_functions(module)}
    return found


def _own_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(module).items():
        is_own = inspect.isfunction(value) and value.__module__ == module.__name__
        if is_own and not name.startswith("_") and (not inspect.signature(value).parameters or _choices(value)):
            yield name, value


def _choices(function: Callable[..., Any]) -> Choices | None:
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1:
        return None
    hint = get_type_hints(function)[parameters[0]]
    return Choices(parameters[0], get_args(hint)) if get_origin(hint) is Literal else None
