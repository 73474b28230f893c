"""Packages whose names are loaded when first used, so that importing one costs nothing."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, home_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module functions `__getattr__` and `__dir__` of a package.

    Args:
        home_of: the module that each public name stands in; a module stands in itself.
    """

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home_of[name])
        value = module if home_of[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*home_of, *vars(sys.modules[package]).get("__all__", ())})
