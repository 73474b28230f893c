"""Loading the compiled kernels: they are there where a compiler is, and their absence is told, never hidden."""

import ast
import ctypes
import importlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anymax.kernels import library
from anymax.kernels.backend import OPERATORS
from anymax.kernels.build import compiler, levels, library_name, sources


def in_fresh_process(script: str, **environment: str) -> str:
    """What a script prints; the environment is read when the library is first loaded."""
    command = [sys.executable, "-W", "error", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on the path (CXX or g++)")
def test_with_a_compiler_the_native_kernels_are_there_at_every_level():
    for level in library.machine_levels():
        with library.use_cpu_level(level):
            assert library.why_missing() is None


@pytest.mark.skipif(library.why_missing() is not None, reason=f"{library.why_missing()}")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not list a process's libraries")
def test_one_openmp_runtime_serves_torch_and_the_kernels():
    script = """
from pathlib import Path
import anymax, torch
from anymax.cli.doctor import openmp_runtimes
from anymax.kernels import use_backend
torch.set_num_threads(2)
torch.randn(300, 300) @ torch.randn(300, 300)
with use_backend("native"):
    anymax.entmax(torch.randn(300, 3000))
print(openmp_runtimes(Path("/proc/self/maps").read_text()))
"""
    runtimes = ast.literal_eval(in_fresh_process(script))
    assert len(runtimes) == 1, runtimes


@pytest.mark.skipif(library.why_missing() is not None, reason=f"{library.why_missing()}")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="glibc's versions of exp, log and pow are named for x86-64")
def test_the_kernels_load_wherever_the_wheels_of_torch_do():
    for level in library.machine_levels():
        names = re.findall(rb"\0GLIBC_2\.(\d+)", (library.folder() / library_name(level)).read_bytes())
        # Torch's own wheels are for 2.28; the documentation states 2.17.
        assert names and max(map(int, names)) <= 17, f"{level} needs glibc 2.{max(map(int, names))}"


def test_the_machine_runs_the_lowest_levels_up_to_its_best():
    names = list(levels())
    available = list(library.machine_levels())
    assert available and available == names[: len(available)]
    assert library.current_level() in names


def test_a_level_the_machine_does_not_have_is_named():
    before = library.current_level()
    with library.use_cpu_level("avx1024"):
        assert library.current_level() == "avx1024"
        reason = library.why_missing()
    assert reason is not None and "'avx1024'" in reason and library.machine_levels()[0] in reason
    assert library.current_level() == before


def test_the_environment_forces_a_level():
    script = "from anymax.kernels import library; print(library.current_level())"
    assert in_fresh_process(script, ANYMAX_CPU_LEVEL="baseline") == "baseline"
    assert in_fresh_process(script, ANYMAX_CPU_LEVEL="") == library.machine_levels()[-1]


def test_without_libraries_the_reference_serves_unless_native_is_named(tmp_path: Path):
    script = """
import torch
from anymax.kernels import library, use_backend
from anymax.kernels.entmax import entmax, kernels

scores, alpha = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([2.0])
assert kernels.choose(scores).__name__ == "anymax.kernels.entmax.reference"
assert entmax(scores, alpha).tolist() == [[1.0, 0.0, 0.0]]
try:
    with use_backend("native"):
        entmax(scores, alpha)
except RuntimeError as error:
    print(error)
"""
    message = in_fresh_process(script, ANYMAX_KERNEL_FOLDER=str(tmp_path))
    assert "native backend was asked for by name" in message and "was not built" in message


def test_a_library_that_does_not_load_is_told(tmp_path: Path):
    level = library.machine_levels()[0]
    (tmp_path / library_name(level)).write_text("not a library")
    script = "from anymax.kernels import library; print(library.why_missing())"
    reason = in_fresh_process(script, ANYMAX_KERNEL_FOLDER=str(tmp_path), ANYMAX_CPU_LEVEL=level)
    assert f"{library_name(level)} does not load" in reason


def test_a_level_from_the_environment_that_is_not_there_is_warned_of():
    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import anymax.kernels.library
print(caught[0].message)
"""
    message = in_fresh_process(script, ANYMAX_CPU_LEVEL="nonsense")
    assert "ANYMAX_CPU_LEVEL must be one of" in message and "'nonsense'" in message


def prototypes() -> dict[str, str]:
    """The arguments of every function that the sources export, one letter each, by the name without its precision."""
    letters = {"int64_t": "l", "int": "i", "double": "d"}
    found = {}
    for source in sources():
        text = source.read_text().replace("\\\n", " ")
        exported = re.findall(r"ANYMAX_EXPORT int64_t (\w+?)(?:_##NAME)?\(([^)]*)\)", text)
        assert exported and len(exported) == text.count("ANYMAX_EXPORT")
        for name, arguments in exported:
            kinds = [argument.rsplit(maxsplit=1)[0].strip() for argument in arguments.split(",") if argument]
            found[name] = "".join("p" if kind.endswith("*") else letters[kind] for kind in kinds)
    return found


def declared() -> dict[str, library.Function]:
    """Every function that a native backend calls."""
    for operator in OPERATORS:
        importlib.import_module(f"anymax.kernels.{operator}.native")
    importlib.import_module("anymax.kernels.memory")
    return library.Function.declared


def test_functions_are_called_with_the_arguments_of_their_prototypes():
    found = prototypes()
    assert found["anymax_prefer_large_pages"] == "pl" and found["anymax_dropout"] == "ppplllldi"
    assert {name: function.arguments for name, function in declared().items()} == found


@pytest.mark.skipif(library.why_missing() is not None, reason=f"{library.why_missing()}")
def test_every_declared_function_is_in_the_library_in_its_precisions():
    for name, function in declared().items():
        for dtype in [None] if name in ("anymax_is_amd", "anymax_prefer_large_pages") else function.precisions:
            assert function.of(dtype).restype is ctypes.c_int64
