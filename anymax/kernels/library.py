"""Loads the compiled CPU kernels with ctypes: one shared library per instruction level, the best one chosen here."""

import ctypes
import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from anymax.kernels.build import FOLDER, levels, library_name

# torch names its own levels; the libraries are built for the same sets of instructions.
_BY_CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}

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


@functools.cache
def _function(level: str, name: str, arguments: str) -> "ctypes._NamedFuncPointer":
    types = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "i": ctypes.c_int, "d": ctypes.c_double}
    function = getattr(_load(level), name)
    function.argtypes = [types[letter] for letter in arguments]
    function.restype = ctypes.c_int64
    return function


def function(name: str, arguments: str) -> "ctypes._NamedFuncPointer":
    """A function of the current library; `arguments` has one letter per argument: pointer, long, int or double."""
    return _function(current_level(), name, arguments)
