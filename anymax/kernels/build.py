"""Compiles the CPU kernels: the same sources once per instruction level, one shared library each.

Runs inside the package build and on its own (`python -m anymax.kernels.build`), so it imports neither torch nor anymax.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-ffp-contract=fast"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-psabi"]
X86_LEVELS = {"baseline": [], "avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"]}


def levels() -> dict[str, list[str]]:
    """Compiler flags of every instruction level of this machine's architecture, lowest first."""
    return X86_LEVELS if platform.machine().lower() in ("x86_64", "amd64") else {"baseline": []}


def library_name(level: str) -> str:
    return f"libanymax-{level}.so"


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*/native.cpp"))


def compiler() -> list[str] | None:
    """The C++ compiler as a command, from CXX or the path; None where there is none."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    return command if shutil.which(command[0]) else None


def is_current(library: Path) -> bool:
    inputs = [*sources(), *FOLDER.rglob("*.h"), Path(__file__)]
    return library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in inputs)


def build(target: Path, extra_flags: list[str] | None = None) -> bool:
    """Compile every level into `target`; says what happened and returns whether the libraries are there."""
    command = compiler()
    if command is None:
        print("anymax: no C++ compiler found, the kernels run through the torch reference; install g++ and reinstall")
        return False
    target.mkdir(parents=True, exist_ok=True)
    # Written beside their place and renamed, so that a process never loads half a library.
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        started = {}
        for level, level_flags in levels().items():
            name = library_name(level)
            if extra_flags is None and is_current(target / name):
                continue
            flags = [*FLAGS, *level_flags, *(extra_flags or []), f"-I{FOLDER}", "-o", str(Path(scratch) / name)]
            command_line = [*command, *flags, *map(str, sources())]
            started[level] = subprocess.Popen(
                command_line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        for level, process in started.items():
            _, said = process.communicate()
            if process.returncode == 0:
                (Path(scratch) / library_name(level)).replace(target / library_name(level))
            else:
                print(f"anymax: compiling the {level} kernels failed, the torch reference serves")
            if said:
                print(said)
    return all(process.returncode == 0 for process in started.values())


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    sys.exit(0 if build(folder, sys.argv[2:] or None) else 1)
