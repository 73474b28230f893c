"""What sum and sample does with the top and the rest."""

import pytest
import torch
from torch import Tensor

import anymax
from anymax.latent import BitVector, Choice, DenseMarginal, ScoreFunction, SumAndSample
from tests.latent.losses import DistanceLoss


def test_with_all_choices_in_the_top_it_is_the_dense_marginal() -> None:
    scores = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    loss_given = DistanceLoss(torch.randn(6, 3, dtype=torch.float64))
    estimates = [estimator(Choice(scores), loss_given) for estimator in (SumAndSample(4), DenseMarginal())]
    gradients = [torch.autograd.grad(estimate.surrogate.sum(), scores)[0] for estimate in estimates]
    torch.testing.assert_close(estimates[0], estimates[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_calls_are_top_and_one_where_there_is_a_rest() -> None:
    scores = torch.tensor([[0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0], [5.0, 5.0, 0.0, 0.0]])
    loss_given = DistanceLoss(torch.zeros(3, 3))
    assert SumAndSample(1)(Choice(scores), loss_given).calls.tolist() == [2, 2, 2]
    assert SumAndSample(2)(Choice(scores), loss_given).calls.tolist() == [3, 3, 3]
    assert SumAndSample(2)(Choice(scores, anymax.sparsemax), loss_given).calls.tolist() == [3, 1, 2]


def test_no_rest_leaves_no_noise_and_no_nan() -> None:
    scores = torch.tensor([[9.0, 0.0, 0.0, 0.0], [0.4, 0.0, 0.1, -3.0]], dtype=torch.float64, requires_grad=True)
    loss_given = DistanceLoss(torch.randn(2, 3, dtype=torch.float64))
    for top in (3, 4):
        latent, estimators = Choice(scores, anymax.sparsemax), (SumAndSample(top), DenseMarginal())
        estimates = [estimator(latent, loss_given).surrogate.sum() for estimator in estimators]
        gradients = [torch.autograd.grad(estimate, scores, retain_graph=True)[0] for estimate in estimates]
        torch.testing.assert_close(estimates[0], estimates[1])
        torch.testing.assert_close(gradients[0], gradients[1])


def test_it_is_less_noisy_than_a_sample_the_more_so_the_larger_the_top() -> None:
    scores = torch.tensor([1.5, 0.5, 0.0, -0.5]).repeat(20_000, 1).requires_grad_()
    loss_given = DistanceLoss(torch.ones(20_000, 3))

    def noise(estimator: torch.nn.Module) -> float:
        surrogate = estimator(Choice(scores), loss_given).surrogate
        return torch.autograd.grad(surrogate.sum(), scores)[0].var(0).sum().item()

    plain, one, two, three = (noise(e) for e in (ScoreFunction(), *(SumAndSample(top) for top in (1, 2, 3))))
    assert plain > 1.5 * one > 1.5**2 * two > 1.5**3 * three
    assert three < 1e-9


def test_zeros_are_not_drawn_from_a_rest_of_the_smallest_numbers() -> None:
    probs = torch.tensor([1.0, 3e-45, 3e-45, 0.0]).repeat(500, 1)
    seen: list[Tensor] = []

    def loss_given(choice: Tensor, example: Tensor) -> Tensor:
        seen.append(choice.argmax(-1))
        return choice[:, 1] + 1

    estimate = SumAndSample()(Choice(torch.zeros(500, 4), lambda scores: probs), loss_given)
    assert set(seen[0][:500].tolist()) == {0} and set(seen[0][500:].tolist()) == {1, 2}
    torch.testing.assert_close(estimate.loss, torch.ones(500))


def test_the_average_is_of_sampled_losses_in_training() -> None:
    estimator = SumAndSample(baseline="average")
    scores = torch.tensor([[5.0, 0.0, 0.0]]).repeat(4, 1)
    for _ in range(3):
        estimator(Choice(scores), lambda choice, example: 7 - 6 * choice[:, 0])
    assert (estimator.average.mean, estimator.average.count) == (7, 3)
    estimator.eval()(Choice(scores), lambda choice, example: choice[:, 0])
    estimator.train()(Choice(scores, anymax.sparsemax), lambda choice, example: choice[:, 0])
    assert (estimator.average.mean, estimator.average.count) == (7, 3)


def test_what_does_not_fit_is_refused() -> None:
    loss_given = DistanceLoss(torch.zeros(3, 3))
    with pytest.raises(TypeError, match="latent must be a Choice for SumAndSample, got BitVector"):
        SumAndSample()(BitVector(torch.zeros(3, 4)), loss_given)
    with pytest.raises(ValueError, match="top must be at most the 4 entries of the choice, got 5"):
        SumAndSample(5)(Choice(torch.zeros(3, 4)), loss_given)
    with pytest.raises(ValueError, match="top must be at least 1"):
        SumAndSample(0)
    with pytest.raises(ValueError, match='baseline must be None or "average"'):
        SumAndSample(baseline="sample")  # type: ignore[arg-type]
