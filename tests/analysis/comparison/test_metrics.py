"""Runs of a task that measures itself, side by side: means over seeds, and what each column holds."""

from dataclasses import replace
from pathlib import Path

import pytest

from anymax.analysis.comparison.metrics import Measured, figure, page, table


def measured(recipe: str, seed: int, loss: float) -> Measured:
    curve = {step: {"loss": loss + step, "calls": 2.0} for step in (1, 2)}
    return Measured(recipe, seed, {"loss": loss, "calls": 2.0}, curve, 1234, 10, 0.5, 200_000_000)


RESULTS = [measured("a", 1, 1.0), measured("b", 1, 3.0), measured("a", 2, 2.0), measured("b", 2, 3.0)]


def test_a_row_has_means_over_seeds_with_their_deviation_and_what_it_cost():
    assert table(RESULTS).columns == ("recipe", "loss", "calls", "parameters", "ms a step", "seconds", "memory")
    cost = ("1,234", "50.0", "0", "200 MB")
    # The deviation of 1 and 2 is the root of a half.
    assert table(RESULTS).rows == (("a", "1.5 ± 0.71", "2 ± 0", *cost), ("b", "3 ± 0", "2 ± 0", *cost))


def test_a_single_seed_has_no_deviation():
    assert table(RESULTS[:2]).rows[0][:3] == ("a", "1", "2")


def test_the_page_has_the_command_the_seeds_and_the_curves():
    text = page(RESULTS, "anymax compare a b").markdown()
    assert "| a | 1.5 ± 0.71 |" in text and "over seeds 1, 2" in text and "$ anymax compare a b\n" in text
    assert [one.title for one in page(RESULTS, "").figures] == ["Metrics of the validation split by step"]


def test_runs_that_were_evaluated_once_are_seen_as_points(tmp_path: Path):
    pytest.importorskip("matplotlib")
    curves = ({2: {"loss": 3.0, "calls": 2.0}}, {})
    for name, curve in zip(("once", "never"), curves, strict=True):
        figure([replace(each, curve=curve) for each in RESULTS]).save(tmp_path / f"{name}.png")
    assert (tmp_path / "once.png").read_bytes() != (tmp_path / "never.png").read_bytes()


def test_curves_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    figure(RESULTS).save(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
