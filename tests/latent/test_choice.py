"""What a choice of one out of n has beyond other latents."""

import pytest
import torch

import anymax
from anymax.latent import Choice, SparseMap


def test_softmax_log_prob_is_exact_where_the_probability_is_too_small_to_hold() -> None:
    choice = Choice(torch.tensor([0.0, -200.0, 1.0]))
    assert choice.probs[1] == 0
    value = torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(choice.log_prob(value), torch.log_softmax(choice.scores, -1)[1])


def test_entropy_of_softmax_agrees_with_torch() -> None:
    scores = torch.randn(7, 5)
    torch.testing.assert_close(Choice(scores).entropy(), torch.special.entr(scores.softmax(-1)).sum(-1))


def test_a_relaxed_sample_of_another_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mapping must be anymax.softmax .* use Choice\(scores\)"):
        Choice(torch.randn(3), anymax.sparsemax).relaxed(1.0)


def test_a_mapping_that_gives_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="the sum of probs must be 1"):
        Choice(torch.randn(3, 5), lambda scores: anymax.subset_marginals(scores, 2))
    with pytest.raises(ValueError, match="the sum of probs must be 1"):
        Choice(torch.full((2, 3), -torch.inf))
    with pytest.raises(ValueError, match=r"of the shape of scores \(3, 5\), got \(3, 4\)"):
        Choice(torch.randn(3, 5), lambda scores: scores[:, 1:].softmax(-1))
    with pytest.raises(TypeError, match="mapping must be a function of scores"):
        Choice(torch.randn(3, 5), SparseMap())  # type: ignore[arg-type]


def test_an_entmax_with_learned_alpha_gets_its_gradient() -> None:
    mapping = anymax.LearnedEntmax((1,), initial=1.5)
    Choice(torch.randn(4, 6), mapping).entropy().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs() > 0 for parameter in mapping.parameters())
