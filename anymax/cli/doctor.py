"""`anymax doctor`: what this machine has, what anymax uses of it, and what to do about the rest."""

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from anymax.cli.console import Console
from anymax.display import Row, Styled, Table

_STYLES = {"good": "green", "plain": "", "absent": "dim", "problem": "bold yellow"}
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `advice` says what to do where there is something to do."""

    subject: str
    found: str
    status: Literal["good", "plain", "absent", "problem"] = "plain"
    advice: str = ""


def doctor(*, strict: Annotated[bool, arg(help_behavior_hint="")] = False) -> int:
    """What this machine has: CPU, threads, kernels, backends, GPU, optional packages.

    Args:
        strict: exit with 1 if the native kernels are missing.
    """
    findings = list(examine())
    rows = tuple(row for finding in findings for row in _rows(finding))
    Console().print(Table(("subject", "found"), rows, is_grid=True).terminal())
    native_missing = any(one.subject == "native kernels" and one.status == "problem" for one in findings)
    return 1 if strict and native_missing else 0


def _rows(finding: Finding) -> Iterator[Row]:
    yield Styled(finding.subject, "bold"), Styled(finding.found, _STYLES[finding.status])
    if finding.advice:
        yield "", f"-> {finding.advice}"


def examine() -> Iterator[Finding]:
    """Everything that was looked at, in the order it is shown."""
    from anymax.bench.harness.machine import describe

    machine = describe()
    yield Finding("anymax", machine.anymax)
    yield Finding("Python", f"{machine.python} on {machine.system}")
    yield Finding("torch", machine.torch)
    yield Finding("CPU", f"{machine.cpu}, {machine.cores} cores")
    yield _threads(machine.threads, machine.cores)
    yield _bfloat16()
    yield from _kernels()
    yield _openmp()
    yield _gpu()
    yield from _extras()


def _threads(threads: int, cores: int) -> Finding:
    if threads > cores:
        advice = f"more threads than cores slow each other down; set OMP_NUM_THREADS={cores}"
        return Finding("threads", f"{threads} on {cores} cores", "problem", advice)
    return Finding("threads", str(threads))


def _bfloat16() -> Finding:
    from anymax.training.optim.bfloat16 import announced, measure

    measured, names = measure(), ", ".join(announced())
    found = f"{measured}; {f'it announces {names}' if names else 'it announces no instructions for it'}"
    if measured.ended_by:
        advice = "train with --precision float32, or keep torch from AMX with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        return Finding("bfloat16", found, "problem", advice)
    if measured.is_slow:
        return Finding("bfloat16", found, "problem", "train with --precision float32")
    return Finding("bfloat16", found, "good" if measured.ratio is not None and measured.ratio < 1 else "plain")


def _kernels() -> Iterator[Finding]:
    from anymax.kernels import backend, library

    levels = library.machine_levels()
    level = library.current_level()
    chosen = "the best here" if level == levels[-1] else "asked for"
    yield Finding("CPU levels", f"{', '.join(levels)}; in use: {level} ({chosen})")
    reason = library.why_missing()
    if reason is None:
        yield Finding("native kernels", f"loaded, {level}", "good")
    else:
        advice = "the torch reference serves in their place: the same results, slower"
        yield Finding("native kernels", f"missing: {reason}", "problem", advice)
    reason_of_triton = _why_triton_cannot_run()
    missing = {"native": reason, "triton": reason_of_triton}
    able = [name for name in backend.backend_names() if missing.get(name) is None]
    yield Finding("backends", f"{', '.join(able)}; the first that can take a tensor runs")
    if reason_of_triton is None:
        yield Finding("Triton kernels", "entmax and attention on the GPU; compiled when first used", "good")
    else:
        yield Finding("Triton kernels", f"not used: {reason_of_triton}", "absent")


def _why_triton_cannot_run() -> str | None:
    """Without importing it, which takes seconds."""
    import torch

    if version("triton") is None:
        return "Triton is not installed; it comes with a GPU build of torch"
    return None if torch.cuda.is_available() else "they are for GPUs"


def _openmp() -> Finding:
    """OpenMP runtimes in this process, once the kernels are loaded; each has its own pool of threads."""
    if not _MAPS.exists():
        return Finding("OpenMP", "not known: this system does not list a process's libraries", "absent")
    runtimes = openmp_runtimes(_MAPS.read_text(errors="backslashreplace"))
    if len(runtimes) > 1:
        advice = "each keeps a pool of threads and they get in each other's way; import torch before anything else"
        return Finding("OpenMP", " and ".join(runtimes), "problem", advice)
    return Finding("OpenMP", runtimes[0] if runtimes else "none loaded", "good" if runtimes else "plain")


def openmp_runtimes(maps: str) -> list[str]:
    """The OpenMP libraries named in a listing of a process's memory, in the format of /proc/self/maps."""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp")))


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("GPU", "none that torch can use", "absent")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("GPU", ", ".join(names), "good")


def _extras() -> Iterator[Finding]:
    """The optional packages by the extra of anymax that brings them, as the package's own metadata lists them."""
    for extra, packages in optional_packages(importlib.metadata.requires("anymax") or []).items():
        found = [f"{package} {version(package) or 'absent'}" for package in packages]
        complete = all(version(package) for package in packages)
        advice = "" if complete else f"pip install 'anymax[{extra}]'"
        yield Finding(f"extra {extra}", ", ".join(found), "plain" if complete else "absent", advice)


def optional_packages(requirements: list[str]) -> dict[str, list[str]]:
    """Names of packages by extra, from requirements such as `matplotlib>=3.9; extra == "plot"`."""
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        match = re.fullmatch(r"""([\w.-]+).*;.*extra == ["'](\w+)["'].*""", requirement)
        if match is not None:
            extras.setdefault(match[2], []).append(match[1])
    return extras


def version(package: str) -> str | None:
    """The installed version of a package, or None; nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
