"""Packages whose names are loaded when first used, so that importing one costs nothing.

The stub of a package, `__init__.pyi`, is the one place that lists its public names: type checkers read it, and so does
`attach`.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The module functions `__getattr__` and `__dir__` of a package and its `__all__`, as its stub says.

    `from package import folder as folder` in the stub offers a folder, which is no part of `__all__`.
    """
    home_of = read_stub(Path(next(iter(sys.modules[package].__path__)), "__init__.pyi"))

    def load(name: str) -> Any:
        if name not in home_of:
            raise _error(package, name)
        home = home_of[name]
        value = importlib.import_module(f"{home}.{name}" if home == package else home)
        if home != package:
            value = getattr(value, name)
        setattr(sys.modules[package], name, value)
        return value

    sys.modules[package].__class__ = _Package
    return load, lambda: sorted(home_of), sorted(name for name, home in home_of.items() if home != package)


class _Package(ModuleType):
    """A package in which a public name may also be the name of a file, as the function `plif` of `plif.py`.

    Importing a file sets it as an attribute of its package, where it would hide the public name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        is_hiding = isinstance(value, ModuleType) and name in self.__all__
        if not is_hiding:
            super().__setattr__(name, value)


def read_stub(stub: Path) -> dict[str, str]:
    """The module that each name of a stub is imported from."""
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


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
    """The folder that has a public name. Its files are read and not run: importing all folders takes seconds."""
    if name.startswith("_"):
        return None
    for path in sorted(Path(next(iter(sys.modules[package].__path__))).glob("*/__init__.py")):
        if name in listed(path):
            return f"{package}.{path.parent.name}"
    return None


def listed(init: Path) -> list[str]:
    """The public names of a package, from its stub or the `__all__` of its `__init__.py`, without running them."""
    if (stub := init.with_suffix(".pyi")).exists():
        return list(read_stub(stub))
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []
