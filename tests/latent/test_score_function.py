"""What the score function estimator does with its baselines."""

import pytest
import torch
from torch import Tensor

from anymax.latent import Choice, ScoreFunction


def index_loss(choice: Tensor, example: Tensor) -> Tensor:
    """The number of the chosen entry."""
    return choice @ torch.arange(choice.shape[-1], dtype=choice.dtype)


def test_the_gradient_is_the_loss_above_the_baseline_times_the_score() -> None:
    scores = torch.randn(50, 3, requires_grad=True)
    estimator = ScoreFunction("average")
    estimator.average.update(torch.tensor([0.5]))
    estimate = estimator(Choice(scores), index_loss)
    (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), scores)
    one_hot = torch.nn.functional.one_hot(estimate.loss.long(), 3)
    torch.testing.assert_close(gradient, (estimate.loss - 0.5).unsqueeze(-1) * (one_hot - scores.softmax(-1)))


def test_the_average_is_over_training_calls_and_updated_after_use() -> None:
    estimator, means = ScoreFunction("average"), []
    scores = torch.zeros(6, 4, requires_grad=True)
    for step in range(5):
        assert estimator.average.mean == pytest.approx(sum(means) / len(means) if means else 0.0)
        estimate = estimator(Choice(scores), index_loss)
        estimate.surrogate.sum().backward()
        means.append(estimate.loss.mean().item())
        assert estimator.average.count == step + 1
    mean = estimator.average.value()
    estimator.eval()(Choice(scores), index_loss)
    estimator.train()(Choice(torch.zeros(0, 4)), index_loss)
    assert (estimator.average.mean, estimator.average.count) == (mean, 5)


def test_two_samples_are_independent_and_the_loss_is_that_of_the_first() -> None:
    seen: list[Tensor] = []

    def loss_given(choice: Tensor, example: Tensor) -> Tensor:
        assert torch.equal(example, torch.arange(4000).repeat(2))
        seen.append(choice.argmax(-1).reshape(2, 4000))
        return index_loss(choice, example)

    estimate = ScoreFunction("sample")(Choice(torch.zeros(4000, 4)), loss_given)
    first, second = seen[0]
    torch.testing.assert_close(estimate.loss, first.float())
    assert (first == second).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_the_loss_has_its_gradient_from_the_first_sample_alone() -> None:
    costs = torch.randn(3, requires_grad=True)
    scores = torch.randn(40, 3)
    for published in (False, True):
        torch.manual_seed(5)
        latent = Choice(scores)
        surrogate = ScoreFunction("sample", published=published)(latent, lambda c, e: c @ costs).surrogate
        torch.manual_seed(5)
        first, second = latent.sample(), latent.sample()
        expected = first.sum(0)
        if published:
            expected = expected - (latent.log_prob(first).unsqueeze(-1) * second).sum(0)
        torch.testing.assert_close(torch.autograd.grad(surrogate.sum(), costs)[0], expected)


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline must be None"):
        ScoreFunction("mean")  # type: ignore[arg-type]
    for baseline in (None, "average"):
        with pytest.raises(ValueError, match="published must be left False"):
            ScoreFunction(baseline, published=True)
