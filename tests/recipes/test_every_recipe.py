"""Every recipe at toy size: trained, killed at some moment and resumed to the same bits, evaluated, made to write."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from anymax.recipes import names

ROOT = Path(__file__).parents[2]
NUM_DRIVERS = 2
# Half a minute where two cores are free.
SECONDS = 900


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What went wrong with each recipe, found by two processes with half of them each."""
    folder = tmp_path_factory.mktemp("recipes")
    with ThreadPoolExecutor(NUM_DRIVERS) as pool:
        found = pool.map(partial(drive, folder), (names()[first::NUM_DRIVERS] for first in range(NUM_DRIVERS)))
        return {name: problems for part in found for name, problems in part.items()}


def drive(folder: Path, recipes: list[str]) -> dict[str, list[str]]:
    """Take recipes through their lives in a process of their own."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.recipes.drive", str(folder), *recipes],
        cwd=ROOT,
        env={**os.environ, "ANYMAX_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = map(json.loads, result.stdout.splitlines())
    return {line["recipe"]: line["problems"] for line in lines}


@pytest.mark.parametrize("name", names())
def test_a_recipe_survives_a_kill_to_the_bit_and_its_model_can_be_used(problems: dict[str, list[str]], name: str):
    assert problems[name] == []
