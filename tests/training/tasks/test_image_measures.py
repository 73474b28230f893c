"""What the tasks on images measure, and what a step weighs, written out image by image and game by game."""

import copy
from dataclasses import replace

import pytest
import torch

from anymax.evaluation.importance import log_likelihood
from anymax.latent import ScoreFunctionConfig, SparseMarginalConfig, SumAndSampleConfig
from anymax.training.tasks.image_task import EVALUATION_SEED
from anymax.training.tasks.signalling import task as signalling_task
from tests.training.tasks.image_toys import (
    CLASSES,
    DRAWN,
    EXACT,
    build,
    measure,
    small_batches,
    some_batches,
    without_noise,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = EXACT | DRAWN


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_classification_is_measured_by_the_likeliest_class_and_the_bound_over_all(mapping: str):
    estimator = SparseMarginalConfig() if mapping == "sparsemax" else ScoreFunctionConfig()
    task = without_noise(build(replace(CLASSES, mapping=mapping, estimator=estimator, entropy=0.5)))
    measured, valid = measure(task), task.images["valid"]
    images = valid.numbers(torch.arange(len(valid)))
    with torch.no_grad():
        scores = task.model.classifier(images)
        probs, explain = task.model.mapping(scores), task.model.explain(images)
        losses = torch.stack(
            [explain(one_hot.expand(len(images), -1), torch.arange(len(images))) for one_hot in torch.eye(10)], 1
        )
    bound = (probs * losses).sum(1) - torch.special.entr(probs).sum(1)
    support = (probs > 0).sum(1).double().mean().item()
    assert measured["loss"] == pytest.approx(bound.mean().item(), rel=1e-5)
    assert measured["accuracy"] == pytest.approx((scores.argmax(1) == valid.labels).double().mean().item())
    assert measured["support"] == pytest.approx(support)
    assert measured["calls"] == pytest.approx(support if mapping == "sparsemax" else 1)


def test_images_with_and_without_a_label_weigh_as_if_all_were_seen_equally_often():
    config = replace(small_batches(CLASSES), warm_rate=3.0)
    task = without_noise(build(config))
    labels, images = task.images["train"].labels, task.images["train"]
    assert len(task.labelled) == 6 and sorted([*task.labelled, *task.unlabelled]) == list(range(len(images)))
    warm, *_, mixed = some_batches(task)
    for batch in (warm, mixed):
        step = task.step(task.model, batch, None)
        seen = [images.numbers(rows) for rows in (batch.unlabelled, batch.labelled)]
        losses = task.model(*seen, labels[batch.labelled])
        if batch is warm:
            assert step.lr_factor == 3 and step.count == 4
            expected = losses.labelled.sum()
        else:
            assert step.lr_factor == 1 and step.count == 4
            expected = len(task.unlabelled) / 6 * losses.unlabelled.sum() + losses.labelled.sum()
        torch.testing.assert_close(step.loss_sum, expected)


def test_which_images_keep_their_label_depends_on_the_seed_alone():
    one, same, other = (
        build(config, seed=seed)
        for config, seed in ((CLASSES, 1), (replace(CLASSES, estimator=SumAndSampleConfig()), 1), (CLASSES, 2))
    )
    assert torch.equal(one.labelled, same.labelled)
    assert set(one.labelled.tolist()) != set(other.labelled.tolist())


@pytest.mark.parametrize("name", ["games", "games of softmax", "games by sample"])
def test_games_are_measured_by_the_likeliest_message_and_by_messages_as_they_are_drawn(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(signalling_task.NUM_GAMES, "valid", 70)
    drawn = []
    task = build(ALL[name])
    draw = task.draws["valid"]
    task.draws["valid"] = lambda *arguments: drawn.append(draw(*arguments)) or drawn[0]
    measured, (games,), model = measure(task), drawn, task.model
    success, expected, heard, likeliest = 0, 0.0, 0, set()
    for candidates, target in zip(task.seen("valid", games.candidates), games.target.tolist(), strict=True):
        probs = model.mapping(model.sender(candidates[target].unsqueeze(0)))[0]
        picks = [int((model.receiver.embed(candidates) @ vector).argmax()) for vector in model.receiver.messages]
        mode = int(probs.argmax())
        success += picks[mode] == target
        expected += sum(prob.item() for prob, pick in zip(probs, picks, strict=True) if pick == target)
        heard += int((probs > 0).sum())
        likeliest.add(mode)
    assert measured["success"] == pytest.approx(success / 70)
    assert measured["expected_success"] == pytest.approx(expected / 70, rel=1e-4)
    assert measured["messages"] == pytest.approx(heard / 70) and measured["used"] == len(likeliest)
    assert measured["calls"] == (2 if name == "games by sample" else measured["messages"])


def test_games_are_played_with_images_as_they_are_or_without_what_all_have_in_common():
    plain, task = build(ALL["games"]), build(replace(ALL["games"], centred=True))
    numbers = {split: images.values.double() / 255 for split, images in task.images.items()}
    for split, values in numbers.items():
        rows = torch.arange(len(values))
        torch.testing.assert_close(plain.seen(split, rows), values.float())
        apart = values - numbers["train"].mean(0)
        expected = apart / apart.square().sum(-1, keepdim=True).sqrt()
        torch.testing.assert_close(task.seen(split, rows), expected.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["codes", "codes of independent bits", "codes by nvil"])
def test_codes_are_measured_by_rate_distortion_and_likelihood(name: str):
    task = build(ALL[name])
    measured, images = measure(task), task.images["valid"].values[: task.config.measured]
    assert measured["loss"] == pytest.approx(measured["rate"] + measured["distortion"])
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(EVALUATION_SEED)
        model = copy.deepcopy(task.model).eval()
        estimate, latent = model.estimate(images)
        likelihood = log_likelihood(latent, model.distortion(images), task.config.samples)
    rate = 6 * torch.tensor(2.0).log() - latent.entropy().mean()
    assert measured["rate"] == pytest.approx(rate.item(), abs=1e-5)
    assert measured["distortion"] == pytest.approx(estimate.loss.mean().item(), rel=1e-5)
    assert measured["bits_per_dim"] == pytest.approx(-likelihood.mean().item() / (64 * 0.6931472), rel=1e-5)
    assert measured["calls"] == estimate.calls.double().mean()


def test_codes_report_the_share_of_certified_top_k_in_steps_and_measures():
    task = build(ALL["codes"])
    with torch.no_grad():
        # Scores so far apart that some codes have fewer than the four bit-vectors that top-k looks at.
        task.model.inference[-1].weight.mul_(8)

    def certified(images: torch.Tensor) -> float:
        _, latent = task.model.estimate(images)
        sizes = latent.support().example.bincount(minlength=len(images))
        return (sizes < 4).double().mean().item()

    share = certified(task.images["valid"].values[: task.config.measured])
    assert 0 < share < 1 and measure(task)["exact"] == pytest.approx(share)
    batch = next(iter(task.batches("train")))
    logged = task.step(task.model, batch, None).log["exact"]
    assert logged == pytest.approx(certified(task.images["train"].values[batch]))
