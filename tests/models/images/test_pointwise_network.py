"""The sum of sigmoids against the plain form: all numbers times all units at once."""

import pytest
import torch
from torch import Tensor

from anymax.models.images.pointwise_network import _Grid, sum_of_sigmoids

UNITS = 20


def plain(numbers: Tensor, spread: Tensor, gather: Tensor) -> Tensor:
    return torch.sigmoid(numbers.unsqueeze(-1) * spread) @ gather


def arguments(number: int, dtype: torch.dtype, *, width: float = 1.0, steepness: float = 1.0) -> tuple[Tensor, ...]:
    numbers = (width * torch.randn(number, dtype=dtype)).requires_grad_()
    spread = (steepness * torch.randn(UNITS, dtype=dtype)).requires_grad_()
    return numbers, spread, torch.randn(UNITS, dtype=dtype, requires_grad=True)


def with_gradients(function, inputs: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    values = function(*inputs)
    return [values.detach(), *torch.autograd.grad(values, inputs, upstream.to(values.dtype))]


@pytest.mark.parametrize(("width", "steepness"), [(0.01, 0.3), (1.0, 1.0), (5.0, 2.0), (0.2, 100.0), (30.0, 1.0)])
# What is right is in double precision too, with rounding of its own.
@pytest.mark.parametrize(
    ("dtype", "number", "tolerance"), [(torch.float32, 20_000, 7e-6), (torch.float64, 60_000, 2e-13)]
)
def test_values_and_gradients_are_as_exact_as_those_of_the_plain_form(
    dtype: torch.dtype, number: int, tolerance: float, width: float, steepness: float
):
    inputs = arguments(number, dtype, width=width, steepness=steepness)
    assert _Grid.around(*inputs[:2]) is not None
    upstream = torch.randn(number, dtype=torch.float64)
    wide = tuple(one.detach().double().requires_grad_() for one in inputs)
    exact = with_gradients(plain, wide, upstream)
    for ours, right in zip(with_gradients(sum_of_sigmoids, inputs, upstream), exact, strict=True):
        assert (ours.double() - right).abs().max() <= tolerance * right.abs().max()


def test_gradients_are_those_of_finite_differences():
    """Numbers that reach far apart make a fine grid, however few there are."""
    inputs = arguments(600, torch.float64, width=0.2)
    assert _Grid.around(*inputs[:2]) is not None
    chosen = torch.arange(0, 600, 60)
    assert torch.autograd.gradcheck(lambda *given: sum_of_sigmoids(*given)[chosen], inputs)


def test_few_numbers_are_computed_one_by_one():
    inputs = arguments(10, torch.float32)
    assert _Grid.around(*inputs[:2]) is None
    assert torch.equal(sum_of_sigmoids(*inputs), plain(*inputs))


def test_any_shape_is_kept():
    numbers, spread, gather = arguments(6000, torch.float32)
    folded = sum_of_sigmoids(numbers.view(2, 30, 100), spread, gather)
    assert torch.equal(folded.flatten(), sum_of_sigmoids(numbers, spread, gather)) and folded.shape == (2, 30, 100)
    assert sum_of_sigmoids(numbers[:0].view(0, 3), spread, gather).shape == (0, 3)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_touches_no_other(bad: float):
    numbers, spread, gather = arguments(5000, torch.float32)
    spoiled = numbers.detach().clone()
    spoiled[7] = bad
    values, right = sum_of_sigmoids(spoiled, spread, gather), plain(spoiled, spread, gather)
    torch.testing.assert_close(values, right, equal_nan=True)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_equal_numbers_and_flat_functions_are_no_special_case(spread: float):
    numbers = torch.full((4000,), 0.7, requires_grad=True)
    weights = torch.full((UNITS,), spread, requires_grad=True), torch.randn(UNITS, requires_grad=True)
    upstream = torch.ones(4000)
    given = with_gradients(sum_of_sigmoids, (numbers, *weights), upstream)
    for ours, right in zip(given, with_gradients(plain, (numbers, *weights), upstream), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_computed_in_single(autocast: bool):
    numbers, spread, gather = (one.detach() for one in arguments(5000, torch.float32))
    half = numbers.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        values = sum_of_sigmoids(half, spread, gather)
    torch.testing.assert_close(values, sum_of_sigmoids(half.float(), spread, gather).bfloat16(), rtol=0, atol=0)


def test_the_same_is_found_where_nothing_may_be_read():
    """Under vmap the numbers cannot be looked at, so all are computed."""
    numbers, spread, gather = arguments(8000, torch.float64)
    rows = torch.func.vmap(sum_of_sigmoids, in_dims=(0, None, None))(numbers.view(2, 4000), spread, gather)
    torch.testing.assert_close(rows.flatten(), sum_of_sigmoids(numbers, spread, gather))
