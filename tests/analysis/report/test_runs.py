"""Runs as a page reads them: short names, groups of seeds, and what is missing or damaged said, not fatal."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.analysis.report.runs import differing, read_runs, short_names
from anymax.recipes import find
from anymax.training import train
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a recipe and one of another."""
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, seed in (
        ("tied", "sotu.adaptive_tied", 1),
        ("tied", "sotu.adaptive_tied", 2),
        ("plain", "sotu.softmax", 1),
    ):
        config = replace(find(recipe)().toy(), steps=2, seed=seed, log_every=1, evaluate_every=1)
        train(config, folder / f"sotu.{name}-seed-{seed}", command=f"anymax train {recipe}")
    return folder


def test_runs_that_differ_in_their_seed_are_a_group(folder: Path) -> None:
    runs = read_runs(sorted(folder.iterdir()))
    assert [run.label for run in runs] == ["plain", "tied, seed 1", "tied, seed 2"]
    assert [run.group for run in runs] == ["plain", "tied", "tied"]
    assert all(run.problems == () and run.command.startswith("anymax train sotu.") for run in runs)
    assert [len(run.trained) for run in runs] == [2, 2, 2] and all(run.step == 2 for run in runs)
    assert differing(runs[1:]) == {"seed": ["1", "2"]}
    assert "model.tie.kind" in differing(runs) or "model.output.kind" in differing(runs)


@each(
    ("paths", "names"),
    [
        (["runs/a.softmax-seed-1"], ["a.softmax-seed-1"]),
        (["x/multi30k.softmax", "x/multi30k.entmax"], ["softmax", "entmax"]),
        (["x/w.bands_8_15", "x/w.bands_8_54"], ["15", "54"]),
        (["x/w.adaptive", "x/w.adaptive_tied"], ["adaptive", "adaptive_tied"]),
        (["first/best", "second/best"], ["first", "second"]),
        (["x/one", "x/one"], ["one", "one"]),
    ],
)
def test_names_are_what_differs(paths: list[str], names: list[str]) -> None:
    assert short_names(paths) == names


def test_a_run_without_some_of_its_files_is_read_as_far_as_it_can_be(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "sotu.plain-seed-1", run)
    (run / "summary.json").unlink()
    assert read_runs([run])[0].summary == {}
    (run / "metrics.jsonl").write_text("no record\n")
    (run / "config.json").write_text(json.dumps({"format": 1}))
    (found,) = read_runs([run])
    assert found.config is None and found.records == [] and len(found.problems) == 2
    assert "must have format" in found.problems[0] and "line 1 is no record" in found.problems[1]


def test_what_is_no_run_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder"):
        read_runs([tmp_path / "none"])
    with pytest.raises(ValueError, match=r"must be the folder of a run, but it has no config\.json"):
        read_runs([tmp_path])
    with pytest.raises(ValueError, match="name each run once"):
        read_runs([folder / "sotu.plain-seed-1"] * 2)
    with pytest.raises(ValueError, match="write anymax report RUN"):
        read_runs([])
