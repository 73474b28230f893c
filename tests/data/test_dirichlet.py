"""Distributions drawn at random."""

import math

import pytest
import torch

from anymax.data.dirichlet import draw_log_targets


@pytest.mark.parametrize("concentration", [1e-6, 0.01, 0.1, 1.0, 50.0, 1e6])
def test_every_context_has_a_distribution_whatever_the_concentration(concentration: float):
    log_targets = draw_log_targets(50, 30, concentration, seed=1)
    assert log_targets.dtype == torch.float64 and log_targets.isfinite().all()
    assert torch.allclose(log_targets.exp().sum(1), torch.ones(50, dtype=torch.float64))


@pytest.mark.parametrize("concentration", [0.01, 0.1, 1.0, 5.0])
def test_draws_have_the_moments_of_a_dirichlet_distribution(concentration: float):
    num_contexts, num_words = 40_000, 5
    probs = draw_log_targets(num_contexts, num_words, concentration, seed=3).exp()
    mean = 1 / num_words
    variance = mean * (1 - mean) / (num_words * concentration + 1)
    assert torch.allclose(probs.mean(0), torch.tensor(mean, dtype=torch.float64), atol=5 * math.sqrt(variance / 40_000))
    assert torch.allclose(probs.var(0), torch.tensor(variance, dtype=torch.float64), rtol=0.05)
    # The probabilities of two words are correlated by -1 / (words - 1).
    assert torch.corrcoef(probs.T)[0, 1] == pytest.approx(-1 / (num_words - 1), abs=0.02)


def test_the_entropy_is_that_of_a_dirichlet_distribution():
    probs = draw_log_targets(20_000, 8, 0.1, seed=1).exp()
    psi = torch.special.digamma
    total = torch.tensor(0.8, dtype=torch.float64)
    expected = psi(total + 1) - psi(torch.tensor(1.1, dtype=torch.float64))
    assert torch.special.entr(probs).sum(1).mean() == pytest.approx(float(expected), rel=0.02)


def test_the_seed_alone_decides_the_draw():
    one = draw_log_targets(4, 6, 0.1, seed=1)
    torch.manual_seed(5)
    assert torch.equal(draw_log_targets(4, 6, 0.1, seed=1), one)
    assert not torch.equal(draw_log_targets(4, 6, 0.1, seed=2), one)


@pytest.mark.parametrize("concentration", [0.0, -1.0, 1e-9, math.inf, math.nan])
def test_a_concentration_that_cannot_be_drawn_from_is_refused(concentration: float):
    with pytest.raises(ValueError, match="concentration must be between 1e-06 and 1e\\+06"):
        draw_log_targets(4, 6, concentration, seed=1)
