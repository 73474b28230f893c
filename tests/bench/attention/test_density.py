"""Scales of scores and the densities they give, against a count of sorted scores; whole models too."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from anymax.bench.attention import density as densities
from anymax.bench.attention.density import density, find_scales
from anymax.bench.attention.problem import make
from anymax.bench.attention.settings import Batch, Settings, Shape
from anymax.bench.attention.translation import _learners, build, draw_batches, measure_density
from anymax.bench.harness.learner import Learner
from anymax.bench.harness.steps import median_parts
from anymax.mappings import Entmax, LearnedEntmax
from anymax.models import TransformerConfig

pytestmark = pytest.mark.usefixtures("one_thread")

BODY = TransformerConfig(
    16, num_layers=2, num_heads=2, ffn_dim=16, dropout=0.1, attention_dropout=0.1, norm_first=False
)
SETTINGS = Settings(body=BODY, batch=Batch(3, 12, 40), width=8)


adam_w = partial(torch.optim.AdamW, lr=1e-7, fused=True)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def support_sizes(scores: Tensor) -> Tensor:
    """Of sparsemax, of each row: the k largest for the last k with 1 + k z_k > z_1 + ... + z_k."""
    descending = scores.double().sort(-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1)
    return (1 + ranks * descending > descending.cumsum(-1)).sum(-1)


def test_density_is_the_share_of_probabilities_that_are_not_zero():
    query, key = drawn(2, 3, 9, 4), drawn(2, 3, 9, 4, seed=1)
    scores = query @ key.mT / math.sqrt(4)
    found = density(query, key, torch.full((3,), 2.0))
    torch.testing.assert_close(found, support_sizes(scores).sum((0, 2)) / (2 * 9 * 9))
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    chosen = support_sizes(scores.masked_fill(~causal, -1e9)).sum((0, 2))
    torch.testing.assert_close(density(query, key, torch.full((3,), 2.0), causal), chosen / (2 * causal.sum()))
    keys = torch.tensor([[True] * 9, [True] * 4 + [False] * 5])[:, None, None]
    chosen = support_sizes(scores.masked_fill(~keys, -1e9)).sum((0, 2))
    torch.testing.assert_close(density(query, key, torch.full((3,), 2.0), keys), chosen / (9 * 13))


@pytest.mark.parametrize("is_causal", [False, True])
def test_every_head_gets_its_density(is_causal: bool, monkeypatch: pytest.MonkeyPatch):
    query, key = drawn(2, 4, 60, 8), drawn(2, 4, 60, 8, seed=1)
    alpha, wanted = torch.tensor([1.2, 1.5, 1.5, 2.0]), torch.tensor([0.1, 0.1, 0.6, 0.999])
    allowed = torch.ones(60, 60, dtype=torch.bool).tril() if is_causal else None
    scale = find_scales(query, key, alpha, wanted, allowed)
    found = density(query * scale[:, None, None], key, alpha, allowed)
    assert (found <= wanted).all() and ((wanted - found) < 0.005).all()
    # Of a part of the queries it is less exact.
    monkeypatch.setattr(densities, "SEARCHED_ENTRIES", 2 * 4 * 60 * 20)
    coarse = find_scales(query, key, alpha, wanted, allowed)
    assert not torch.equal(coarse, scale)
    torch.testing.assert_close(density(query * coarse[:, None, None], key, alpha, allowed), wanted, rtol=0.3, atol=0.01)


def test_problems_are_the_same_every_time_and_say_what_they_are():
    settings = replace(SETTINGS, width=16)
    one, other = (make(Shape(1, 2, 200), [0.1], settings) for _ in range(2))
    assert torch.equal(one.query_BHNE, other.query_BHNE) and one.scales == other.scales
    assert one.setting.startswith("density 10.0 %, scale ")
    deviations = one.scores().std((0, 2, 3))
    torch.testing.assert_close(deviations.sort().values, torch.tensor(one.scales), rtol=0.1, atol=0)
    half = make(Shape(1, 4, 200), [0.02, 0.999], settings)
    assert half.density == pytest.approx(0.51, abs=0.01) and half.scales[1] > 20 * half.scales[0]
    causal = make(Shape(1, 2, 200), [0.1], settings, is_causal=True)
    assert causal.density == pytest.approx(0.1, abs=0.002)
    torch.testing.assert_close(causal.scores().isinf().sum((2, 3)), torch.full((1, 2), 200 * 199 // 2))


@pytest.mark.parametrize("mapping", [lambda: Entmax(1.5), lambda: LearnedEntmax((2, 1, 1))], ids=["fixed", "learned"])
def test_a_model_gets_a_density_in_all_its_attentions(mapping):
    model, pair = build(SETTINGS, mapping), draw_batches(SETTINGS)[0]
    before = measure_density(model, pair)
    assert measure_density(model, pair, wanted=0.3) == pytest.approx(0.3, abs=0.03) != pytest.approx(before, abs=0.03)
    # The scales are in the weights.
    assert measure_density(model, pair) == pytest.approx(0.3, abs=0.03)
    assert model.training and not any(one._forward_pre_hooks for one in model.attentions())
    assert len(model.attentions()) == 6


def test_sources_are_padded_and_targets_are_not():
    for source, target in draw_batches(SETTINGS):
        assert source.shape == (3, 12) and target.shape == (3, 13)
        assert (source != 0).sum(1).tolist() == [9, 10, 12] and (target != 0).all()
        assert max(source.max(), target.max()) < 40


def test_models_of_both_softmaxes_learn_the_same_and_entmax_starts_from_the_same_weights():
    """A comparison of time means nothing between different results."""
    settings = replace(SETTINGS, body=replace(BODY, dropout=0.0, attention_dropout=0.0))
    learners = list(_learners(settings))
    assert [one.name.split(",")[0] for one in learners] == ["softmax"] * 2 + ["entmax 1.5", "entmax"] * 2
    fused, eager, *others = learners
    assert [fused() for _ in range(3)] == pytest.approx([eager() for _ in range(3)], rel=1e-5)
    # With a learning rate as small as this, weights are as good as those at the start.
    weights = dict(fused.model.named_parameters())
    for learner in others[:2]:
        shared = {name: value for name, value in learner.model.named_parameters() if "pre_alpha" not in name}
        assert shared.keys() == weights.keys()
        torch.testing.assert_close(shared, weights, rtol=1e-4, atol=1e-5)
    assert all(float(one.setting.split()[1]) == pytest.approx(10.0, abs=3.0) for one in others[2:])


def test_a_step_taken_in_parts_is_a_step():
    settings = replace(SETTINGS, body=replace(BODY, dropout=0.0, attention_dropout=0.0))
    whole, parted = (
        Learner("one", build(settings, lambda: Entmax(1.5)), draw_batches(settings), adam_w) for _ in range(2)
    )
    before = [parameter.detach().clone() for parameter in whole.model.parameters()]
    for _ in range(3):
        whole()
        parts = parted.parts()
    assert min(parts.forward, parts.backward, parts.optimizer) > 0 and median_parts([parts]) == parts
    moved = 0
    for ours, theirs, start in zip(whole.model.parameters(), parted.model.parameters(), before, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-8)
        moved += int(not torch.equal(ours, start))
    assert moved > len(before) / 2


def test_steps_run_in_half_precision():
    def learned() -> LearnedEntmax:
        return LearnedEntmax((2, 1, 1))

    learner = Learner("one", build(SETTINGS, learned), draw_batches(SETTINGS), adam_w, precision=torch.bfloat16)
    exact = Learner("one", build(SETTINGS, learned), draw_batches(SETTINGS), adam_w, precision=torch.float32)
    assert learner() == pytest.approx(exact(), rel=0.05)
    assert all(parameter.dtype == torch.float32 for parameter in learner.model.parameters())
