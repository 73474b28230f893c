"""Processors that are slow in bfloat16 or refuse it: what is measured, and what a training does about it."""

from pathlib import Path

import pytest

from anymax.training import train
from anymax.training.optim import bfloat16
from anymax.training.optim.bfloat16 import Measured
from tests.training.toys import StoppingAt, toy_config


def test_what_ends_the_measuring_process_does_not_end_this_one(monkeypatch: pytest.MonkeyPatch):
    scripts = {
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)": Measured(ended_by="SIGILL"),
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": Measured(),
        "import no_such_package": Measured(),
        "import time; time.sleep(600)": Measured(),
        "print(2.5)": Measured(2.5),
    }
    for script, expected in scripts.items():
        monkeypatch.setattr(bfloat16, "_SCRIPT", script)
        monkeypatch.setattr(bfloat16, "SECONDS", 0.5 if "sleep" in script else 120.0)
        # Past the cache.
        assert bfloat16.measure.__wrapped__() == expected


def test_instructions_are_read_where_the_system_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listing = tmp_path / "cpuinfo"
    monkeypatch.setattr(bfloat16, "_CPU", listing)
    assert bfloat16.announced() == []
    listing.write_text("model name : bf16 and others\nflags : fpu amx_bf16 avx512_bf16 avx512f\n")
    assert bfloat16.announced() == ["avx512_bf16", "amx_bf16"]
    listing.write_text("Features : fp asimd bf16\n")
    assert bfloat16.announced() == ["bf16"]


def test_a_training_warns_once_of_a_slow_precision_and_is_refused_one_that_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bfloat16, "measure", lambda: Measured(6.0))
    for precision, warned in (("bfloat16", 1), ("float32", 0)):
        listening = StoppingAt()
        train(toy_config(precision=precision, steps=3), tmp_path / precision, reporter=listening)
        warnings = [text for text in listening.messages if "take 6 times as long as in float32" in text]
        assert len(warnings) == warned
    monkeypatch.setattr(bfloat16, "measure", lambda: Measured(ended_by="SIGILL"))
    with pytest.raises(ValueError, match=r"precision must be 'float32' here, got 'bfloat16': .* SIGILL"):
        train(toy_config(precision="bfloat16"), tmp_path / "refused", reporter=StoppingAt())
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_nothing_is_measured_where_nothing_would_be_reported(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unexpected() -> Measured:
        raise AssertionError("measured without a reporter")

    monkeypatch.setattr(bfloat16, "measure", unexpected)
    assert train(toy_config(precision=precision, steps=3), tmp_path / "run").step == 3
