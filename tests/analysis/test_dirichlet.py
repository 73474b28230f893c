"""The Dirichlet study: its grid, trainings in processes of their own that are done once, and what its page says."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from numpy import full_like, linspace
from scipy import stats

from anymax.analysis.dirichlet.page import figure, interval, page, t_quantile
from anymax.analysis.dirichlet.study import (
    CIRCLE,
    MEAN,
    Result,
    Run,
    Untrained,
    as_dict,
    plan,
    read_results,
    train_all,
    without_training,
)
from anymax.data.dirichlet import draw_log_targets
from anymax.models.free_contexts import circle
from anymax.training import AdamConfig, Cosine, DirichletConfig, RunConfig
from anymax.training.run_folder.folder import CHECKPOINTS, CONFIG, SUMMARY
from anymax.vocabulary import FullOutputConfig, SparseOutputConfig

STEPS = 3


def recipe(output: FullOutputConfig | SparseOutputConfig) -> RunConfig:
    return RunConfig(DirichletConfig(12, 8, 2, 0.1, output), AdamConfig(0.1), Cosine(), steps=STEPS)


RECIPES = {"linear": recipe(FullOutputConfig()), "sparse": recipe(SparseOutputConfig())}


def planned(folder: Path, **changes: object) -> list[Run]:
    grid = {"dims": [2, 3], "concentrations": [0.1], "seeds": [1], **changes}
    return plan(RECIPES, folder, **grid)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four runs, trained by two processes."""
    folder = tmp_path_factory.mktemp("study")
    train_all(planned(folder), jobs=2, announce=lambda text: None)
    return folder


def test_the_grid_has_every_combination_once_and_a_folder_for_each(tmp_path: Path):
    runs = planned(tmp_path, concentrations=[0.01, 1.0], seeds=[1, 2, 3])
    assert len(runs) == len({run.folder for run in runs}) == 2 * 2 * 2 * 3
    places = {(run.output, run.config.task.dim, run.config.task.concentration, run.config.seed) for run in runs}
    assert len(places) == len(runs)
    assert all(run.config.threads == 1 and run.config.steps == STEPS for run in runs)


def test_a_finished_run_leaves_its_numbers_and_no_weights(study: Path):
    for run in planned(study):
        assert (run.folder / SUMMARY).exists() and not (run.folder / CHECKPOINTS).exists()
    results = list(read_results(planned(study)))
    assert [(each.output, each.dim) for each in results] == [("linear", 2), ("sparse", 2), ("linear", 3), ("sparse", 3)]
    assert {each.metrics["rank"] for each in results if each.output == "linear"} == {3, 4}
    assert json.loads(json.dumps(as_dict(results, [])))["runs"][0]["metrics"] == results[0].metrics


def test_what_is_done_is_not_done_again(study: Path):
    before = {run.folder: (run.folder / SUMMARY).stat().st_mtime_ns for run in planned(study)}
    told: list[str] = []
    train_all(planned(study), announce=told.append)
    assert told == ["training: 4 of 4 done"]
    assert before == {run.folder: (run.folder / SUMMARY).stat().st_mtime_ns for run in planned(study)}


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(study: Path, tmp_path: Path):
    folder = Path(shutil.copytree(study, tmp_path / "copy"))
    first = planned(folder)[0]
    reached = next(read_results([first]))
    for path in first.folder.iterdir():
        # As a kill before the first checkpoint leaves it.
        if path.name != CONFIG:
            path.unlink()
    train_all(planned(folder), announce=lambda text: None)
    assert next(read_results([first])).metrics == reached.metrics


def test_a_study_with_other_settings_is_not_mixed_in(study: Path):
    changed = [replace(run, config=replace(run.config, optimizer=AdamConfig(0.2))) for run in planned(study)]
    with pytest.raises(ValueError, match=r"other settings: optimizer\.lr 0\.1 -> 0\.2; name another folder"):
        train_all(changed, announce=lambda text: None)


def test_the_circle_has_every_mode_right_and_the_mean_the_least_divergence_of_one_for_all(tmp_path: Path):
    runs = planned(tmp_path, concentrations=[0.01, 1.0], seeds=[1, 2])
    found = {(each.name, each.concentration, each.seed): each for each in without_training(runs)}
    assert set(found) == set(product((CIRCLE, MEAN), (0.01, 1.0), (1, 2)))
    task = runs[0].config.task
    for (name, concentration, seed), each in found.items():
        log_targets = draw_log_targets(task.num_contexts, task.num_words, concentration, seed=seed)
        targets = log_targets.exp().numpy()
        if name == CIRCLE:
            assert each.mode_matching == 1
            # As near as any radius comes, those between the tried ones too.
            tried = [
                circle(log_targets.argmax(1), task.num_words, radius=10**x).log_probs() for x in linspace(-3, 5, 161)
            ]
            found_kl = [stats.entropy(targets, log_probs.detach().exp().numpy(), axis=1).mean() for log_probs in tried]
            assert each.kl == pytest.approx(min(found_kl), rel=0.02)
            assert 0 < found_kl.index(min(found_kl)) < len(found_kl) - 1
            continue
        assert each.kl == pytest.approx(stats.entropy(targets, targets.mean(0, keepdims=True), axis=1).mean())
        assert each.kl < stats.entropy(targets, full_like(targets, 1 / task.num_words), axis=1).mean()
        assert each.mode_matching == (targets.argmax(1) == targets.mean(0).argmax()).mean()


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 30, 101])
def test_quantiles_are_those_of_students_t(freedom: int):
    assert t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-10)


def test_the_interval_is_that_of_scipy_and_a_single_value_has_none():
    values = [0.3, 0.5, 0.4, 0.45]
    low, high = stats.t.interval(0.95, 3, loc=0.4125, scale=stats.sem(values))
    assert interval(values) == pytest.approx((0.4125, (high - low) / 2))
    assert interval([0.3]) == (0.3, None)


def results() -> list[Result]:
    return [
        Result(
            output,
            dim,
            0.01,
            seed,
            {"mode_matching": 0.1 * dim + 0.02 * seed, "mode_ties": 0.0}
            | ({"kl": 1.0, "rank": dim + 1.0} if output == "linear" else {"support": 3.0}),
            2.0,
        )
        for output in ("linear", "sparse")
        for dim in (2, 4)
        for seed in (1, 2)
    ]


def test_the_page_shows_means_and_intervals_and_leaves_out_what_is_not_measured():
    text = page(results(), [Untrained(CIRCLE, 0.01, 1, 1.0, 1.5)], "anymax analyze dirichlet").markdown()
    # Two values 2 percent apart: half an interval is 12.7 standard errors of 1 percent.
    assert "| **concentration 0.01** |  |  |\n| linear | 23.0 ± 12.7 | 43.0 ± 12.7 |" in text
    assert "| sparse |  |  |" in text and "| linear | 3.0 ± 0.0 | 5.0 ± 0.0 |" in text
    assert "several likeliest words" not in text
    assert f"| {CIRCLE} | 100.0 | 1.500 |" in text and "$ anymax analyze dirichlet\n" in text


def test_ties_are_reported_where_there_are_any():
    tied = [replace(each, metrics={**each.metrics, "mode_ties": 0.25}) for each in results()]
    assert "| sparse | 25.0 ± 0.0 | 25.0 ± 0.0 |" in page(tied, [], "").markdown()


def test_a_picture_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    figure(results(), [Untrained(CIRCLE, 0.01, 1, 1.0, 1.5)]).save(tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
