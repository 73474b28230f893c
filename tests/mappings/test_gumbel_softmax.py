"""Gumbel-softmax: its distribution, its straight-through form and its temperatures."""

import math

import pytest
import torch
from scipy import stats

import anymax


def test_hard_samples_follow_the_softmax_distribution() -> None:
    scores = torch.tensor([0.5, -1.0, 1.5, 0.0])
    generator = torch.Generator().manual_seed(1)
    counts = anymax.gumbel_softmax(scores.expand(20_000, 4), hard=True, generator=generator).sum(0)
    expected = torch.softmax(scores, -1) * 20_000
    assert stats.chisquare(counts.numpy(), expected.numpy() * float(counts.sum() / expected.sum())).pvalue > 0.001


def test_hard_samples_are_exactly_one_hot_with_the_relaxed_gradient() -> None:
    scores, weights = torch.randn(50, 6, requires_grad=True), torch.randn(50, 6)
    gradients = []
    for hard in (True, False):
        sample = anymax.gumbel_softmax(scores, 0.5, hard=hard, generator=torch.Generator().manual_seed(5))
        gradients += torch.autograd.grad((sample * weights).sum(), scores)
        if hard:
            assert ((sample == 0) | (sample == 1)).all() and (sample.sum(-1) == 1).all()
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_same_generator_state_gives_the_same_sample() -> None:
    scores = torch.randn(4, 5)
    samples = [anymax.gumbel_softmax(scores, generator=torch.Generator().manual_seed(2)) for _ in range(2)]
    torch.testing.assert_close(samples[0], samples[1], rtol=0, atol=0)
    assert not torch.equal(samples[0], anymax.gumbel_softmax(scores, generator=torch.Generator().manual_seed(3)))


def test_low_temperatures_approach_one_hot_and_high_ones_uniform() -> None:
    scores = torch.randn(100, 5)
    assert anymax.gumbel_softmax(scores, 0.01).amax(-1).mean() > 0.99
    assert (anymax.gumbel_softmax(scores, 1000.0) - 0.2).abs().max() < 0.01


def test_a_masked_entry_is_never_drawn_and_an_empty_row_stays_empty() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]]).repeat(200, 1)
    sample = anymax.gumbel_softmax(torch.randn(400, 3), hard=True, mask=mask)
    assert (sample[~mask] == 0).all() and (sample[1::2] == 0).all() and (sample[::2].sum(-1) == 1).all()


def test_the_schedule_decays_to_its_floor() -> None:
    assert anymax.annealed_tau(0, rate=1e-3, floor=0.5) == 1.0
    assert anymax.annealed_tau(100, rate=1e-3, floor=0.5) == pytest.approx(math.exp(-0.1))
    assert anymax.annealed_tau(10_000, rate=1e-3, floor=0.5) == 0.5
    for wrong in ({"rate": -1, "floor": 0.5}, {"rate": 1, "floor": 0}):
        with pytest.raises(ValueError, match="rate and step must not be negative and floor must be above 0"):
            anymax.annealed_tau(1, **wrong)


def test_a_learned_temperature_starts_where_told_and_gets_a_gradient() -> None:
    tau = anymax.LearnedTau(0.8, floor=0.1)
    torch.testing.assert_close(tau(), torch.tensor(0.8))
    anymax.gumbel_softmax(torch.randn(5, 4), tau())[:, 0].sum().backward()
    assert tau.pre_tau.grad is not None and tau.pre_tau.grad != 0
    with torch.no_grad():
        tau.pre_tau.fill_(-100.0)
    assert tau() >= 0.1
    with pytest.raises(ValueError, match="initial must be above floor"):
        anymax.LearnedTau(0.1, floor=0.5)


def test_tau_may_differ_by_row() -> None:
    scores, tau = torch.randn(2, 6), torch.tensor([[0.05], [50.0]])
    sample = anymax.gumbel_softmax(scores, tau)
    assert sample[0].max() > 0.8 and sample[1].max() < 0.3


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_a_tau_outside_its_range_is_refused(tau: float) -> None:
    for value in (tau, torch.tensor(tau), torch.tensor([[1.0], [tau]])):
        with pytest.raises(ValueError, match="tau must be finite and above 0"):
            anymax.gumbel_softmax(torch.randn(2, 3), value)


def test_a_tau_next_to_zero_or_a_high_one_does_not_overflow() -> None:
    sample = anymax.gumbel_softmax(torch.randn(5, 4), 1e-40)
    torch.testing.assert_close(sample, anymax.argmax(sample))
    torch.testing.assert_close(anymax.LearnedTau(1000.0)(), torch.tensor(1000.0))
    with pytest.raises(TypeError, match="tau must be a number or a tensor"):
        anymax.gumbel_softmax(torch.randn(2, 3), "1")
