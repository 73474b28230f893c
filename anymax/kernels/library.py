"""Loads the compiled CPU kernels with ctypes: one shared library per instruction level, the best one chosen here."""

import ctypes
import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ClassVar

import torch

from anymax.kernels.build import FOLDER, levels, library_name

# torch names its own levels; the libraries are built for the same sets of instructions.
_BY_CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}

# What the functions of each precision are called.
PRECISIONS = {torch.float32: "float32", torch.float64: "float64"}
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

# Per context, as the choice of a backend is.
_forced_level = ContextVar("anymax CPU level", default=os.environ.get("ANYMAX_CPU_LEVEL") or None)


@functools.cache
def machine_levels() -> tuple[str, ...]:
    """The instruction levels this machine can run, lowest first."""
    best = _BY_CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), "baseline")
    names = tuple(levels())
    return names[: names.index(best) + 1] if best in names else names[:1]


def current_level() -> str:
    """The instruction level in use: the machine's best, or the one ANYMAX_CPU_LEVEL or `use_cpu_level` names."""
    return _forced_level.get() or machine_levels()[-1]


if _forced_level.get() is not None and current_level() not in machine_levels():
    warnings.warn(
        f"ANYMAX_CPU_LEVEL must be one of {', '.join(machine_levels())} on this machine, got {current_level()!r}; "
        "the torch reference runs instead of the native kernels",
        stacklevel=2,
    )


@contextmanager
def use_cpu_level(level: str) -> Iterator[None]:
    """Run the native kernels inside the block at one instruction level, in this thread or task alone."""
    token = _forced_level.set(level)
    try:
        yield
    finally:
        _forced_level.reset(token)


def folder() -> Path:
    """Where the libraries are; ANYMAX_KERNEL_FOLDER names another place, as for a build with a sanitizer."""
    return Path(os.environ.get("ANYMAX_KERNEL_FOLDER", FOLDER))


@functools.cache
def _load(level: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(folder() / library_name(level)))


@functools.cache
def _why_missing(level: str) -> str | None:
    if level not in machine_levels():
        return f"this machine runs {', '.join(machine_levels())}, not the level {level!r} that was asked for"
    path = folder() / library_name(level)
    if not path.exists():
        return f"{path.name} was not built; install a C++ compiler and run `python -m anymax.kernels.build`"
    try:
        _load(level)
    except OSError as error:
        return f"{path.name} does not load ({error})"
    return None


def why_missing() -> str | None:
    """Why there are no native kernels at the current level, or None if there are."""
    return _why_missing(current_level())


class Function:
    """A C function that the library has for each precision, declared once: its calls and a test of the sources use it.

    Args:
        name: without the precision, which follows it in the library.
        arguments: one letter per argument: pointer, long (int64), int or double. All return a long.
        takes_half: whether it is there for half precision too.
    """

    declared: ClassVar[dict[str, "Function"]] = {}
    # A long is as wide as a pointer, and a pointer is what ctypes converts an integer to the fastest.
    _types: ClassVar = {"p": ctypes.c_void_p, "l": ctypes.c_void_p, "i": ctypes.c_int, "d": ctypes.c_double}

    def __init__(self, name: str, arguments: str, *, takes_half: bool = False) -> None:
        self.name, self.arguments = name, arguments
        self.precisions = PRECISIONS | HALVES if takes_half else PRECISIONS
        self._found: dict[tuple[str, torch.dtype | None], ctypes._NamedFuncPointer] = {}
        self.declared[name] = self

    def of(self, dtype: torch.dtype | None) -> "ctypes._NamedFuncPointer":
        """The function of the current level's library for a precision; None for one that has no precision."""
        key = (current_level(), dtype)
        found = self._found.get(key)
        if found is None:
            found = getattr(_load(key[0]), self.name if dtype is None else f"{self.name}_{self.precisions[dtype]}")
            found.argtypes = [self._types[letter] for letter in self.arguments]
            found.restype = ctypes.c_int64
            self._found[key] = found
        return found
