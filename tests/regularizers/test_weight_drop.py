"""Weight drop: what is dropped, what stays, and when nothing happens."""

import pytest
import torch

from anymax.regularizers import weight_drop


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_a_share_of_the_numbers_is_zero_and_the_rest_is_scaled(rate: float) -> None:
    weight = torch.randn(300, 200)
    dropped = weight_drop(weight, rate, training=True)
    kept = dropped != 0
    assert kept.double().mean().item() == pytest.approx(1 - rate, abs=0.01)
    torch.testing.assert_close(dropped[kept], weight[kept] / (1 - rate))


def test_every_call_draws_its_own_mask() -> None:
    weight = torch.ones(50, 40)
    first, second = (weight_drop(weight, 0.5, training=True) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(weight, torch.ones(50, 40))


def test_a_seed_decides_the_mask() -> None:
    weight, dropped = torch.ones(50, 40), []
    for _ in range(2):
        torch.manual_seed(3)
        dropped.append(weight_drop(weight, 0.5, training=True))
    assert torch.equal(*dropped)


def test_a_gradient_reaches_what_was_kept_and_nothing_else() -> None:
    weight = torch.randn(20, 30, requires_grad=True)
    dropped = weight_drop(weight, 0.5, training=True)
    dropped.sum().backward()
    torch.testing.assert_close(weight.grad, (dropped != 0) * 2.0)


def test_the_weight_itself_comes_back_where_nothing_is_dropped() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 4))
    assert weight_drop(weight, 0.5, training=False) is weight
    assert weight_drop(weight, 0.0, training=True) is weight


def test_a_rate_of_one_drops_all() -> None:
    assert (weight_drop(torch.randn(3, 4), 1.0, training=True) == 0).all()


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_is_a_chance(rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be between 0 and 1, got"):
        weight_drop(torch.ones(2), rate, training=False)
