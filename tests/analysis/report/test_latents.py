"""The section of discrete latents: what it counts, by hand, what it draws, and that other tasks have none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from anymax.analysis.latents import Looked
from anymax.analysis.report.latents import (
    MOST_POINTS,
    MOST_VALUES,
    by_class,
    curves,
    last_evaluation,
    latents,
    most_frequent,
    pictures,
)
from anymax.data.images.config import ImageSet
from anymax.display import Chart, Page, Part, Pictures, Table
from anymax.display.chart import in_script
from anymax.training import Ranks, train
from anymax.training.latent_view import Gallery, LatentView
from anymax.training.tasks.image_task import ImageTask
from tests.training.tasks.image_toys import CLASSES, CODES, EXACT, GAMES, build, run
from tests.training.toys import Toy

pytestmark = pytest.mark.usefixtures("one_thread")
CERTIFIED = "Share of images whose code is certified"
EMPTY = LatentView("messages", None)


def titled(parts: list[Part], title: str) -> Part:
    (found,) = (part for part in parts if title in getattr(part, "title", ""))
    return found


@pytest.mark.parametrize("name", EXACT)
def test_a_trained_run_has_a_section_of_less_than_400_kilobytes(name: str, tmp_path: Path):
    train(run(EXACT[name], steps=4, evaluate_every=2, log_every=1), tmp_path / "run")
    parts = latents(build(EXACT[name]), tmp_path / "run", "run/step_1")
    assert {Pictures, Chart, Table} == {type(part) for part in parts}
    assert all(part.source for part in parts)
    assert sum(len(part.html()) for part in parts) < 400_000
    calls = titled(parts, "Calls of the decoder")
    assert calls.columns["step"] == [1, 2, 3, 4, 2, 4] and calls.source == "metrics.jsonl"
    json.dumps(Page("latents", tuple(parts)).as_dict())
    again = latents(build(EXACT[name]), tmp_path / "run", "run/step_1")
    assert [part.html() for part in parts] == [part.html() for part in again]


def test_a_task_without_a_latent_has_no_section(tmp_path: Path):
    task = Toy().build(tmp_path, Ranks(), seed=1, announce=lambda _: None)
    assert latents(task, tmp_path, "run/step_1") == []


@torch.no_grad()
def likeliest(task: ImageTask, row: int) -> tuple[int, int]:
    """The likeliest value of the latent for one image, and how many have a probability."""
    images = task.images["test"].numbers(torch.tensor([row]))
    scores = task.model.sender(images) if hasattr(task.model, "sender") else task.model.classifier(images)
    return int(scores.argmax()), int((task.model.mapping(scores) > 0).sum())


@pytest.mark.parametrize("name", ["classes", "games", "games of softmax"])
def test_values_are_counted_by_what_images_show(name: str):
    task = build(EXACT[name])
    # Pixels that are drawn are then what they were.
    task.images["test"].values[:] = (task.images["test"].values > 100) * 255
    view, labels = task.latent_view(), task.images["test"].labels.tolist()
    found = [likeliest(task, row) for row in range(len(labels))]
    expected = torch.zeros_like(view.by_class)
    for label, (value, _) in zip(labels, found, strict=True):
        expected[label, value] += 1
    assert torch.equal(view.by_class, expected) and view.counts == sorted(expected.sum(0).tolist(), reverse=True)
    sizes = [size for _, size in found]
    assert view.support == ({} if "softmax" in name else {size: sizes.count(size) for size in sorted({*sizes})})
    json.dumps(view.as_dict())


@torch.no_grad()
def test_bits_are_turned_one_by_one_in_the_likeliest_codes():
    task = build(CODES)
    view, model = task.latent_view(), task.model
    codes = (model.inference(task.images["test"].numbers(torch.arange(len(task.images["test"])))) > 0).float()
    torch.testing.assert_close(view.bits.on, codes.mean(0))
    change = []
    for bit in range(6):
        turned = codes[:6].clone()
        turned[:, bit] = turned[:, bit].logical_not()
        change.append((model.generate(turned) - model.generate(codes[:6])).abs().mean().item())
    assert view.bits.change.tolist() == pytest.approx(change)
    largest = max(range(6), key=change.__getitem__)
    assert view.bits.turned.rows[:2] == ["code", f"bit {largest + 1} turned"]
    assert sum(view.support.values()) == len(codes) and max(view.support) <= 4
    assert build(EXACT["codes of independent bits"]).latent_view().support == {}


def test_pictures_are_dark_where_images_are_bright():
    images = torch.tensor([0.0, 1.0, 0.5, 2.0]).expand(2, 3, 4)
    shown = pictures(Gallery("<b>title</b>", images, ["one", "<i>"], ["a", "b", "c"], source="drawn"))
    assert shown.columns == ("a", "b", "c") and [name for name, _ in shown.rows] == ["one", "<i>"]
    assert {(each.width, each.pixels) for _, row in shown.rows for each in row} == {(2, bytes([255, 0, 128, 0]))}
    assert "<b>" not in shown.html() and "<i>" not in shown.html() and "from drawn" in shown.html()


def test_the_map_has_shares_of_each_class_and_no_cell_that_is_empty():
    counts = torch.tensor([[0, 3, 1], [0, 0, 0], [0, 0, 5]])
    columns = by_class(counts, "messages").columns
    cells = list(zip(columns["class"], columns["value"], columns["images"], columns["share"], strict=True))
    assert cells == [("0", "2", 1, 0.25), ("0", "1", 3, 0.75), ("2", "2", 5, 1.0)]
    assert most_frequent(counts, "messages").rows == (("0", "4", "1", "75.0%", "2"), ("2", "5", "2", "100.0%", "1"))


def test_many_classes_and_values_are_cut_to_the_most_frequent():
    counts = torch.ones(300, 1000, dtype=torch.int64)
    counts[:, 7], counts[:, 999] = 3, 2
    shown = by_class(counts, "messages")
    assert {*shown.columns["value"]} == {"999", *map(str, range(MOST_VALUES - 1))} and len(shown.html()) < 100_000
    assert f"{MOST_VALUES} of 1,000 messages that occur are shown." in shown.note


def test_curves_have_the_quantities_of_training_and_of_valid_but_the_loss():
    logs = {10: {"calls": 5.0, "loss": 1.0}, 20: {"calls": 4.0, "loss": 0.5}}
    looked = Looked(EMPTY, {20: {"loss": 0.7, "calls": 4.5, "exact": float("nan")}}, logs)
    (calls,) = curves(looked)
    assert calls.columns == {
        "step": [10, 20, 20],
        "value": [5.0, 4.0, 4.5],
        "measured in": ["training", "training", "valid"],
    }
    assert last_evaluation(looked)[0].rows == (("Calls of the decoder for each example", "4.5"), (CERTIFIED, "nan"))
    assert looked.as_dict()["logs"] == logs and looked.calls == {10: 5.0, 20: 4.0}
    for step in range(30, 60_000, 10):
        looked.logs[step] = {"<script>": float(step), "calls": float("nan")}
    shown = {chart.title: chart for chart in curves(looked)}
    odd, calls = shown["<script>"], shown["Calls of the decoder for each example"]
    assert len(odd) <= MOST_POINTS and odd.columns["step"][-1] == 59_990 and len(calls.html()) < 30_000
    assert odd.html().count("<script") == 1 and "NaN" not in calls.html()


def test_a_run_without_records_shows_what_the_model_does(tmp_path: Path):
    kinds = [type(part) for part in latents(build(CLASSES), tmp_path, "run/step_1")]
    assert kinds == [Pictures, Chart, Table, Chart, Chart]


def test_features_are_no_pictures(tmp_path: Path):
    for split in ("train", "test"):
        tensors = {"features": torch.rand(60, 7), "labels": torch.arange(60) % 6}
        save_file(tensors, tmp_path / f"{split}.safetensors")
    task = build(replace(GAMES, images=ImageSet(path=tmp_path), num_candidates=2))
    parts = latents(task, tmp_path, "run/step_1")
    assert not any(isinstance(part, Pictures) for part in parts)
    assert len(titled(parts, "most frequent of").rows) == 6


def test_every_plot_is_one_that_vega_lite_draws(tmp_path: Path):
    vega = pytest.importorskip("vl_convert")
    for config in (CODES, GAMES):
        train(run(config, steps=4, evaluate_every=2, log_every=1), tmp_path / type(config).__name__)
        for chart in latents(build(config), tmp_path / type(config).__name__, "run"):
            if isinstance(chart, Chart):
                rows = [dict(zip(chart.columns, row, strict=True)) for row in zip(*chart.columns.values(), strict=True)]
                spec = json.loads(in_script({**chart.spec, "data": {"values": rows}}))
                assert vega.vegalite_to_svg(spec).startswith("<svg")
