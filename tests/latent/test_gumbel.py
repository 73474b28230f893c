"""What the Gumbel estimators do with temperatures and modes."""

import math

import pytest
import torch
from torch import Tensor

import anymax
from anymax.latent import AnnealedTemperature, BitVector, Choice, Gumbel, Latent, StraightThroughGumbel


class Seen:
    """A loss that keeps the choices it is given."""

    def __init__(self) -> None:
        self.choice = torch.empty(0)

    def __call__(self, choice: Tensor, example: Tensor) -> Tensor:
        self.choice = choice
        return choice.square().sum(-1)


def seen_by(estimator: Gumbel, latent: Latent) -> Tensor:
    loss_given = Seen()
    estimator(latent, loss_given)
    return loss_given.choice


def is_discrete(choice: Tensor) -> bool:
    return bool(((choice == 0) | (choice == 1)).all())


@pytest.mark.parametrize("latent", [Choice(torch.randn(30, 4)), BitVector(torch.randn(30, 4))], ids=["choice", "bits"])
def test_samples_are_relaxed_in_training_and_discrete_in_evaluation(latent: Latent) -> None:
    assert not is_discrete(seen_by(Gumbel(), latent))
    assert is_discrete(seen_by(Gumbel().eval(), latent))
    assert not is_discrete(seen_by(Gumbel(published=True).eval(), latent))
    for published in (False, True):
        estimator = StraightThroughGumbel(published=published)
        assert is_discrete(seen_by(estimator, latent)) and is_discrete(seen_by(estimator.eval(), latent))


def test_straight_through_bits_are_the_sample_and_the_mode_where_published() -> None:
    bits = BitVector(torch.randn(500, 6))
    torch.manual_seed(1)
    relaxed = bits.relaxed(0.7)
    torch.manual_seed(1)
    assert torch.equal(seen_by(StraightThroughGumbel(0.7), bits), (relaxed > 0.5).float())
    assert torch.equal(seen_by(StraightThroughGumbel(0.7, published=True), bits), bits.mode())
    assert not torch.equal(bits.mode(), (relaxed > 0.5).float())


def test_published_straight_through_bits_have_the_gradient_of_the_relaxed_sample() -> None:
    scores, weights = torch.randn(20, 6, requires_grad=True), torch.randn(20, 6)

    def loss_given(choice: Tensor, example: Tensor) -> Tensor:
        return (choice * weights[example]).sum(-1)

    torch.manual_seed(1)
    surrogate = StraightThroughGumbel(0.7, published=True)(BitVector(scores), loss_given).surrogate
    torch.manual_seed(1)
    relaxed = (BitVector(scores).relaxed(0.7) * weights).sum()
    gradients = [torch.autograd.grad(total, scores)[0] for total in (surrogate.sum(), relaxed)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_temperature_can_be_set_and_is_used() -> None:
    estimator, latent = Gumbel(2.0), Choice(torch.zeros(300, 4))
    warm = seen_by(estimator, latent).amax(-1).mean()
    estimator.temperature = 0.125
    assert estimator.temperature == 0.125 and "temperature=0.125" in repr(estimator)
    assert seen_by(estimator, latent).amax(-1).mean() > 0.9 > warm


def test_an_annealed_temperature_falls_with_training_calls() -> None:
    estimator, latent = Gumbel(annealed=AnnealedTemperature(0.1, floor=0.5, every=3)), Choice(torch.zeros(2, 3))
    temperatures = []
    for _ in range(12):
        temperatures.append(estimator.temperature)
        seen_by(estimator, latent)
        seen_by(estimator.eval(), latent)
        estimator.train()
    expected = [max(0.5, math.exp(-0.1 * (step // 3) * 3)) for step in range(12)]
    assert temperatures == pytest.approx(expected)
    assert temperatures[0] == 1.0 and temperatures[-1] == 0.5
    assert estimator.steps == 12


def test_options_outside_their_range_are_refused() -> None:
    annealed = AnnealedTemperature(1e-4)
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="temperature must be finite and above 0"):
            Gumbel(value)
        with pytest.raises(ValueError, match="temperature must be finite and above 0"):
            StraightThroughGumbel().temperature = value
    with pytest.raises(ValueError, match=r"temperature must be left at 1.0"):
        Gumbel(0.5, annealed=annealed)
    with pytest.raises(ValueError, match="temperature must be left to AnnealedTemperature"):
        Gumbel(annealed=annealed).temperature = 0.5
    for options in ({"rate": -1.0}, {"rate": math.nan}, {"rate": 1, "floor": 0.0}, {"rate": 1, "every": 0}):
        with pytest.raises(ValueError, match="must be"):
            AnnealedTemperature(**options)


def test_a_latent_that_cannot_be_relaxed_is_refused() -> None:
    with pytest.raises(ValueError, match="use Choice"):
        seen_by(Gumbel(), Choice(torch.randn(3, 4), anymax.sparsemax))
