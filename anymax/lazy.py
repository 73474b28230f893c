"""Packages whose names are loaded when first used, so that importing one costs nothing."""

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def attach(package: str, home_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module functions `__getattr__` and `__dir__` of a package.

    Args:
        home_of: the module that each public name stands in; a module stands in itself.
    """

    def load(name: str) -> Any:
        if name not in home_of:
            raise _error(package, name)
        module = importlib.import_module(home_of[name])
        value = module if home_of[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*home_of, *vars(sys.modules[package]).get("__all__", ())})


def _error(package: str, name: str) -> AttributeError | ImportError:
    """What an unknown name raises; it says where the name is if a folder of the package has it."""
    message = f"module {package!r} has no attribute {name!r}"
    if (home := _folder_of(package, name)) is None:
        return AttributeError(message)
    message += f"; use `from {home} import {name}`"
    # `from package import name` replaces an AttributeError and its message; it asks for the name from this function.
    is_from_import = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return ImportError(message, name=package) if is_from_import else AttributeError(message)


def _folder_of(package: str, name: str) -> str | None:
    """The folder that has a public name. Its `__init__.py` is read and not run: importing all folders takes seconds."""
    if name.startswith("_"):
        return None
    for path in sorted(Path(next(iter(sys.modules[package].__path__))).glob("*/__init__.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "_HOME_OF"):
                listed = node.value.keys if isinstance(node.value, ast.Dict) else getattr(node.value, "elts", [])
                if any(isinstance(entry, ast.Constant) and entry.value == name for entry in listed):
                    return f"{package}.{path.parent.name}"
    return None
