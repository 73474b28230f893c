"""The cross-entropy of a small layer against F.cross_entropy of F.linear in float64, in every engine."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anymax.kernels.cross_entropy import layer_cross_entropy, prefers_layer
from anymax.kernels.cross_entropy.native import SMALL
from tests.each import each
from tests.kernels.test_cross_entropy import threads

pytestmark = pytest.mark.usefixtures("engine")
ALL = (True, True, True)


def drawn(rows: int, dim: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, bias and targets."""
    return (
        2 * torch.randn(rows, dim, dtype=dtype),
        torch.randn(n, dim, dtype=dtype),
        torch.randn(n, dtype=dtype),
        torch.randint(n, (rows,)),
    )


def expected(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, coefficient: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses and gradients in float64."""
    sources = [None if part is None else part.double().requires_grad_() for part in (hidden, weight, bias)]
    losses = F.cross_entropy(F.linear(*sources), target, reduction="none", label_smoothing=smoothing)
    found = iter(torch.autograd.grad(losses, [part for part in sources if part is not None], coefficient.double()))
    return losses.detach(), [None if part is None else next(found) for part in sources]


@each("dim", [1, 2, 5, 15])
@each("n", [1, 2, 7, 63, 64, 65, 256, 300])
def test_losses_and_gradients_are_those_of_all_scores(dim: int, n: int) -> None:
    for rows, smoothing, has_bias in product((1, 3, 4, 5, 600), (0.0, 0.3), (True, False)):
        *layer, bias, target = drawn(rows, dim, n)
        given = (*layer, bias if has_bias else None, target, smoothing)
        coefficient = torch.randn(rows, dtype=torch.float64)
        losses, gradients = layer_cross_entropy(*given, coefficient, (True, True, has_bias))
        wanted_losses, wanted = expected(*given, coefficient)
        torch.testing.assert_close(losses, wanted_losses, rtol=1e-12, atol=1e-12)
        for gradient, exact in zip(gradients, wanted, strict=True):
            assert (gradient is None) == (exact is None)
            if gradient is not None:
                torch.testing.assert_close(gradient, exact, rtol=1e-11, atol=1e-11)


def test_many_rows_lose_nothing_in_float32() -> None:
    layer, coefficient = drawn(40_000, 5, 256, torch.float32), torch.rand(40_000)
    losses, gradients = layer_cross_entropy(*layer, 0.0, coefficient, ALL)
    wanted_losses, wanted = expected(*layer, 0.0, coefficient)
    torch.testing.assert_close(losses.double(), wanted_losses, rtol=1e-6, atol=1e-5)
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert gradient is not None and exact is not None
        assert (gradient - exact).norm() < 1e-6 * exact.norm()


def test_what_is_not_wanted_is_not_there_and_changes_nothing() -> None:
    layer, coefficient = drawn(9, 3, 20), torch.randn(9, dtype=torch.float64)
    losses, gradients = layer_cross_entropy(*layer, 0.1, coefficient, ALL)
    for wanted in product((True, False), repeat=3):
        again, found = layer_cross_entropy(*layer, 0.1, coefficient, wanted)
        assert again.equal(losses)
        for is_wanted, gradient, whole in zip(wanted, found, gradients, strict=True):
            assert gradient.equal(whole) if is_wanted else gradient is None
    without, found = layer_cross_entropy(*layer, 0.1, None, ALL)
    torch.testing.assert_close(without, losses)
    assert found == [None, None, None]


def test_the_bits_do_not_depend_on_the_number_of_threads(engine: str) -> None:
    if engine == "reference":
        pytest.skip("torch promises no such thing of its sums")
    layer, coefficient = drawn(3000, 5, 256, torch.float32), torch.randn(3000)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            losses, gradients = layer_cross_entropy(*layer, 0.1, coefficient, ALL)
        results.append([losses, *gradients])
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_row_without_an_answer_says_nan_and_spoils_no_other(poison: float) -> None:
    hidden, weight, bias, target = drawn(11, 3, 20)
    hidden[6, 1] = poison
    losses, (by_hidden, by_weight, _) = layer_cross_entropy(
        hidden, weight, bias, target, 0.0, torch.ones(11, dtype=torch.float64), ALL
    )
    others = torch.arange(11) != 6
    assert losses[6].isnan() and losses[others].isfinite().all()
    assert by_hidden[6].isnan().all() and by_hidden[others].isfinite().all() and by_weight.isnan().any()


def test_only_the_native_backend_prefers_it_for_small_layers_in_full_precision(engine: str) -> None:
    hidden, weight, is_native = torch.randn(2, 5), torch.randn(256, 5), engine != "reference"
    assert prefers_layer(hidden, weight) == prefers_layer(hidden.double(), weight.double()) == is_native
    assert not prefers_layer(hidden, torch.randn(SMALL // 6 + 1, 5))
    assert not prefers_layer(hidden.half(), weight.half())
