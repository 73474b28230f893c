"""`anymax doctor` lists what is there, and what to do about what is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anymax.cli import doctor
from anymax.kernels import library
from anymax.training.optim import bfloat16
from anymax.training.optim.bfloat16 import Measured


def found() -> dict[str, doctor.Finding]:
    return {finding.subject: finding for finding in doctor.examine()}


def test_versions_levels_and_threads_are_those_of_this_process():
    findings = found()
    assert findings["torch"].found == torch.__version__
    assert findings["threads"].found.split()[0] == str(torch.get_num_threads())
    assert all(level in findings["CPU levels"].found for level in library.machine_levels())


def test_missing_kernels_are_reported_with_the_reason_and_fail_only_when_strict(tmp_path: Path):
    environment = os.environ | {"ANYMAX_KERNEL_FOLDER": str(tmp_path), "COLUMNS": "200"}
    results = [
        subprocess.run(
            [sys.executable, "-m", "anymax", "doctor", *options], capture_output=True, text=True, env=environment
        )
        for options in ([], ["--strict"])
    ]
    assert [result.returncode for result in results] == [0, 1]
    for result in results:
        assert "missing" in result.stdout and "python -m anymax.kernels.build" in result.stdout
        assert "reference serves" in result.stdout


def test_present_kernels_pass_the_strict_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(library, "why_missing", lambda: None)
    assert doctor.doctor(strict=True) == 0
    assert "loaded" in capsys.readouterr().out


def test_one_openmp_runtime_is_right_and_two_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    maps = tmp_path / "maps"
    monkeypatch.setattr(doctor, "_MAPS", maps)
    first = "7f00-7f01 r-xp 00000000 08:01 11 /lib/torch lib/libgomp.so.1\n"
    second = "7f02-7f03 r-xp 00000000 08:01 12 /lib/libiomp5.so\n"
    maps.write_text(first * 2 + "7f04-7f05 rw-p 00000000 00:00 0\n7f06-7f07 r-xp 0 08:01 13 /lib/libc.so.6\n")
    assert (found()["OpenMP"].found, found()["OpenMP"].status) == ("/lib/torch lib/libgomp.so.1", "good")
    maps.write_text(first + second)
    assert found()["OpenMP"].status == "problem" and "libiomp5" in found()["OpenMP"].found
    maps.write_text("")
    assert found()["OpenMP"].found == "none loaded"
    maps.unlink()
    assert "not known" in found()["OpenMP"].found


def test_more_threads_than_cores_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    assert found()["threads"].status == "problem" and "OMP_NUM_THREADS" in found()["threads"].advice


def test_bfloat16_that_is_slow_or_refused_is_a_problem_and_one_that_is_fast_is_good(monkeypatch: pytest.MonkeyPatch):
    # Whatever this processor is.
    real = found()["bfloat16"]
    assert "bfloat16" in real.found and "announces" in real.found
    printed = {
        Measured(0.25): ("good", "take 0.25 times as long as in float32", ""),
        Measured(1.1): ("plain", "take 1.1 times as long", ""),
        Measured(6.0): ("problem", "take 6 times as long", "--precision float32"),
        Measured(ended_by="SIGILL"): ("problem", "ends the process with SIGILL", "ONEDNN_MAX_CPU_ISA"),
        Measured(): ("plain", "could not be measured", ""),
    }
    for measured, (status, said, advice) in printed.items():
        monkeypatch.setattr(bfloat16, "measure", lambda measured=measured: measured)
        finding = found()["bfloat16"]
        assert finding.status == status and said in finding.found and advice in finding.advice


def test_an_absent_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch):
    installed = doctor.version
    monkeypatch.setattr(doctor, "version", lambda package: None if package == "matplotlib" else installed(package))
    finding = found()["extra plot"]
    assert (finding.found, finding.status) == ("matplotlib absent", "absent")
    assert finding.advice == "pip install 'anymax[plot]'"


def test_extras_are_read_from_requirements():
    requirements = [
        "torch>=2.13",
        'a-b>=1; extra == "x"',
        "c==2; python_version > '3' and extra == 'x'",
        'd ; extra == "y"',
    ]
    assert doctor.optional_packages(requirements) == {"x": ["a-b", "c"], "y": ["d"]}


def test_a_package_that_does_not_exist_has_no_version():
    assert doctor.version("no-such-package-anywhere") is None


def test_gpus_are_listed_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    assert found()["GPU"].found == "card 0, card 1"
