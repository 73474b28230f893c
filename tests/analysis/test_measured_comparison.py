"""Runs of a task that measures itself, side by side: means over seeds, and what each column holds."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from anymax.analysis.measured_comparison import Measured, cells, head, markdown, plot, terminal


def measured(recipe: str, seed: int, loss: float) -> Measured:
    curve = {step: {"loss": loss + step, "calls": 2.0} for step in (1, 2)}
    return Measured(recipe, seed, {"loss": loss, "calls": 2.0}, curve, 1234, 10, 0.5, 200_000_000)


RESULTS = [measured("a", 1, 1.0), measured("b", 1, 3.0), measured("a", 2, 2.0), measured("b", 2, 3.0)]


def test_a_row_has_means_over_seeds_with_their_deviation_and_what_it_cost():
    assert head(RESULTS) == ("recipe", "loss", "calls", "parameters", "ms a step", "seconds", "memory")
    cost = ("1,234", "50.0", "0", "200 MB")
    # The deviation of 1 and 2 is the root of a half.
    assert list(cells(RESULTS)) == [("a", "1.5 ± 0.71", "2 ± 0", *cost), ("b", "3 ± 0", "2 ± 0", *cost)]


def test_a_single_seed_has_no_deviation():
    assert next(cells(RESULTS[:2]))[:3] == ("a", "1", "2")


def test_the_page_and_the_terminal_show_the_same_rows():
    page = markdown(RESULTS, "anymax compare a b")
    assert "| a | 1.5 ± 0.71 |" in page and "over seeds 1, 2" in page and "    anymax compare a b\n" in page
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(terminal(RESULTS))
    shown = console.export_text()
    assert all(cell in shown for row in cells(RESULTS) for cell in row)


def test_runs_that_were_evaluated_once_are_seen_as_points(tmp_path: Path):
    pytest.importorskip("matplotlib")
    curves = ({2: {"loss": 3.0, "calls": 2.0}}, {})
    for name, curve in zip(("once", "never"), curves, strict=True):
        plot(tmp_path / f"{name}.png", [replace(each, curve=curve) for each in RESULTS])
    assert (tmp_path / "once.png").read_bytes() != (tmp_path / "never.png").read_bytes()


def test_curves_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot(tmp_path / "curves.png", RESULTS)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
