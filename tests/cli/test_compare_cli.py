"""Recipes side by side as one types it."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import PLAIN, QUICK, complaint, out

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_recipes_are_compared_side_by_side_and_not_trained_twice(capsys: pytest.CaptureFixture[str]):
    command = ["compare", PLAIN, "sotu.adaptive", *QUICK, "--jobs", "2", "--folder", "both"]
    told = out(capsys, *command)
    assert PLAIN in told and "sotu.adaptive" in told and "interpolated bigram" in told
    page = Path("both/comparison.md").read_text()
    assert f"anymax {' '.join(command)}" in page and f"| {PLAIN} |" in page
    finished = {path: path.stat().st_mtime_ns for path in Path("both").glob("*/summary.json")}
    assert len(finished) == 2
    assert out(capsys, *command) == told
    assert {path: path.stat().st_mtime_ns for path in Path("both").glob("*/summary.json")} == finished
    assert "steps 2 -> 3; name another --folder" in complaint(capsys, *command, "--steps", "3")


def test_outputs_without_a_perplexity_are_compared_by_what_they_choose(capsys: pytest.CaptureFixture[str]):
    told = out(capsys, "compare", "ptb.linear", "ptb.sparse", *QUICK, "--folder", "both")
    assert "accuracy" in told and "eps-perplexity" in told
    for recipe in ("ptb.linear", "ptb.sparse"):
        tested = json.loads(Path(f"both/{recipe}-seed-1/evaluations/test.json").read_text())
        (row,) = [line for line in told.splitlines() if recipe in line and "%" in line]
        assert f"{tested['choices']['accuracy']:.2%}" in row
        assert f"{tested['choices']['epsilon_perplexity']:.2f}" in row
