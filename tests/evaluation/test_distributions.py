"""How near distributions are to known ones, against torch's own divergence and counts by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from anymax.evaluation.distributions import EPSILON, nearness


def test_divergences_are_those_of_torch():
    log_probs, log_targets = (torch.randn(7, 5, dtype=torch.float64).log_softmax(1) for _ in range(2))
    measured = nearness(log_probs, log_targets, has_zeros=False)
    assert measured["kl"] == pytest.approx(
        F.kl_div(log_probs, log_targets, reduction="batchmean", log_target=True).item()
    )
    assert measured["cross_entropy"] == pytest.approx(F.cross_entropy(log_probs, log_targets.exp()).item())
    distance = torch.cdist(log_probs.exp(), log_targets.exp(), p=1).diagonal().mean().item() / 2
    assert measured["total_variation"] == pytest.approx(distance)
    smoothed = ((log_probs.exp() + EPSILON) / (1 + 5 * EPSILON)).log()
    expected = F.kl_div(smoothed, log_targets, reduction="batchmean", log_target=True).item()
    assert measured["smoothed_kl"] == pytest.approx(expected)


def test_a_distribution_is_no_distance_from_itself():
    log_probs = (100 * torch.randn(7, 5, dtype=torch.float64)).log_softmax(1)
    measured = nearness(log_probs, log_probs, has_zeros=False)
    assert (measured["kl"], measured["total_variation"], measured["mode_matching"]) == (0, 0, 1)


def test_modes_are_counted_and_a_tie_is_a_miss():
    targets = torch.tensor([[0.6, 0.3, 0.1]] * 4).log()
    probs = torch.tensor([[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4]]).log()
    measured = nearness(probs, targets, has_zeros=False)
    assert (measured["mode_matching"], measured["mode_ties"]) == (0.25, 0.5)


def test_zeros_have_a_smoothed_divergence_and_no_other():
    targets = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]], dtype=torch.float64).log()
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64).log()
    measured = nearness(probs, targets, has_zeros=True)
    assert {"kl", "cross_entropy"}.isdisjoint(measured)
    assert measured["support"] == 1.5 and all(map(math.isfinite, measured.values()))
    smoothed = [math.log((p + EPSILON) / (1 + 3 * EPSILON)) for p in probs.exp().flatten().tolist()]
    pairs = zip(targets.flatten().tolist(), smoothed, strict=True)
    assert measured["smoothed_kl"] == pytest.approx(sum(math.exp(t) * (t - p) for t, p in pairs) / 2)
    assert measured["mode_ties"] == 0.5 and measured["mode_matching"] == 0.5


def test_probabilities_that_underflow_do_no_harm():
    targets = torch.tensor([[0.0, -4000.0, -800.0]], dtype=torch.float64).log_softmax(1)
    probs = torch.tensor([[0.0, -3.0, -900.0]], dtype=torch.float64).log_softmax(1)
    measured = nearness(probs, targets, has_zeros=False)
    assert measured["kl"] == pytest.approx(-float(probs[0, 0])) and measured["mode_matching"] == 1


@pytest.mark.parametrize(
    ("log_probs", "log_targets", "message"),
    [
        ([[0.0, -math.inf]], [[-1.0, -1.0]], "say has_zeros=True"),
        ([[math.nan, 0.0]], [[-1.0, -1.0]], "the model has diverged"),
        ([[-1.0, -1.0]], [[0.0, -math.inf]], "log_targets must be finite"),
        ([[-1.0, -1.0]], [[-1.0, -1.0, -1.0]], r"must both be \(rows, words\)"),
    ],
)
def test_what_has_no_number_is_refused(log_probs: list, log_targets: list, message: str):
    with pytest.raises(ValueError, match=message):
        nearness(torch.tensor(log_probs), torch.tensor(log_targets), has_zeros=False)
