"""Entmax against independent oracles, over all of alpha's range, and the Modules around it."""

import math
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

import anymax
from tests.each import each
from tests.oracles import entmax_exactly, heavy_entmax_exactly, long_heavy_entmax, nearest_point, slope

pytestmark = pytest.mark.usefixtures("engine")
ALPHAS = [0.05, 0.2, 0.5, 0.9, 0.999, 1.0, 1.00001, 1.01, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0]


@cache
def heavy(alpha: float) -> list[tuple[Tensor, Tensor]]:
    # Numbers that are floats too, so that both precisions are asked the same; every third is a tie.
    rows = [torch.randn(n).double() * scale for n in (1, 2, 40, 300) for scale in (2**-10, 1.0, 8.0, 2.0**20)]
    for scores in rows:
        scores[::3] = scores[0]
    return [(scores, heavy_entmax_exactly(scores, alpha)) for scores in rows]


@each("alpha", [0.0, 2**-20, 2**-7, 0.25, 0.5, 0.875, 1 - 2**-10, 1 - 2**-23])
def test_is_exact_below_one_where_every_entry_has_a_probability(alpha: float) -> None:
    for scores, expected in heavy(alpha):
        # A power is off by as many roundings as its logarithm is large.
        likely = expected > 1e-30
        torch.testing.assert_close(anymax.entmax(scores, alpha)[likely], expected[likely], rtol=2e-14, atol=0)
        torch.testing.assert_close(anymax.entmax(scores, alpha), expected, rtol=5e-13, atol=1e-300)
        in_float = anymax.entmax(scores.float(), alpha).double()
        torch.testing.assert_close(in_float[likely], expected[likely], rtol=2e-5, atol=0)
        masked = anymax.entmax(torch.cat([scores, torch.tensor([-torch.inf]).double()]), alpha)
        assert masked[-1] == 0
        torch.testing.assert_close(masked[:-1], expected, rtol=1e-13, atol=0)


@cache
def long_row(alpha: float, scale: float) -> tuple[Tensor, Tensor]:
    scores = torch.randn(100_000) * scale
    return scores, long_heavy_entmax(scores, alpha)


@each("alpha", [0.0, 0.25, 0.875])
def test_is_exact_for_long_rows_below_one(alpha: float) -> None:
    for scale in (1.0, 1000.0):
        scores, expected = long_row(alpha, scale)
        torch.testing.assert_close(anymax.entmax(scores.double(), alpha), expected, rtol=3e-14, atol=0)
        torch.testing.assert_close(anymax.entmax(scores, alpha).double(), expected, rtol=2e-5, atol=0)


def test_far_scores_keep_their_probability_below_one() -> None:
    for dtype, far in ((torch.float32, 1e30), (torch.float64, 1e200)):
        probs = anymax.entmax(torch.tensor([0.0, -far], dtype=dtype), 0.0)
        torch.testing.assert_close(probs[1] * far, torch.tensor(1.0, dtype=dtype))
        probs = anymax.entmax(torch.tensor([0.0, 0.0, -far, -torch.inf], dtype=dtype), 0.25)
        torch.testing.assert_close(probs[:2], torch.full((2,), 0.5, dtype=dtype))
        assert probs[2] >= 0 and probs[3] == 0


def test_alpha_zero_has_its_gradients() -> None:
    scores, weights = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.randn(3, 5).double()
    assert torch.autograd.gradcheck(lambda scores: anymax.entmax(scores, 0.0), (scores,))
    alpha = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad((anymax.entmax(scores, alpha) * weights).sum(), alpha)
    step = 1e-4
    values = [(anymax.entmax(scores, k * step) * weights).sum(1) for k in range(5)]
    expected = sum(c * value for c, value in zip((-25, 48, -36, 16, -3), values, strict=True)) / (12 * step)
    torch.testing.assert_close(gradient[:, 0], expected, rtol=1e-8, atol=1e-10)


def test_one_tensor_holds_alphas_from_zero_to_three() -> None:
    alpha = torch.linspace(0, 3, 61)[:, None].repeat(2, 1)
    for n, dtype in ((6, torch.float32), (400, torch.float32), (40, torch.float64), (40, torch.bfloat16)):
        scores = (torch.randn(122, n) * 2).to(dtype).requires_grad_()
        learned = alpha.clone().requires_grad_()
        probs = anymax.entmax(scores, learned)
        gradients = torch.autograd.grad((probs * scores.detach()).sum(), (scores, learned))
        assert probs.dtype == dtype and all(gradient.isfinite().all() for gradient in gradients)
        alone = torch.stack([anymax.entmax(row, a.item()) for row, a in zip(scores, alpha, strict=True)])
        tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(probs, alone, rtol=tolerance, atol=tolerance / 10)


def test_half_precision_below_one_is_rounded_single_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        scores = (torch.randn(5, 300) * 3).to(dtype)
        for alpha in (0.0, 0.3, 0.5, 0.999):
            assert anymax.entmax(scores, alpha).equal(anymax.entmax(scores.float(), alpha).to(dtype))


def test_gradients_of_half_precision_are_those_of_double_precision_but_for_its_rounding() -> None:
    for dtype, (num_rows, n), scale in product((torch.float16, torch.bfloat16), ((40, 16), (6, 600)), (0.02, 1.0)):
        scores, upstream = (torch.randn(num_rows, n) * scale).to(dtype), torch.randn(num_rows, n).to(dtype)
        for alpha in (0.5, 1.0, 1.33, 1.5, 2.0, 3.0):
            gradients = []
            for precision in (dtype, torch.float64):
                wide = torch.float64 if precision == torch.float64 else torch.float32
                given = scores.to(precision).requires_grad_()
                learned = torch.full((), alpha, dtype=wide, requires_grad=True)
                probs = anymax.entmax(given, alpha)
                (by_scores,) = torch.autograd.grad(probs, given, upstream.to(precision))
                probs = anymax.entmax(given, learned)
                (by_alpha,) = torch.autograd.grad(probs, learned, upstream.to(precision))
                assert by_scores.dtype == probs.dtype == precision and by_alpha.dtype == wide
                gradients.append((by_scores.double(), by_alpha.double()))
            (by_scores, by_alpha), (wanted, wanted_by_alpha) = gradients
            eps = torch.finfo(dtype).eps
            # Of its row's largest: what the mean of the row is off by hits every entry.
            error = (by_scores - wanted).abs().amax(1) / wanted.abs().amax(1).clamp(min=1e-6)
            assert error.max() < 3 * eps
            # Not by what the probabilities are rounded by: the gradient by alpha is computed before.
            torch.testing.assert_close(by_alpha, wanted_by_alpha, rtol=1e-3, atol=1e-5)


def test_derivatives_are_right_below_one_and_through_one() -> None:
    scores = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[0.05], [0.5], [1 - 1e-6], [1.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(anymax.entmax, (scores, alpha), eps=1e-7, atol=1e-5)
    assert torch.autograd.gradgradcheck(anymax.entmax, (scores, alpha), eps=1e-6, atol=1e-3, rtol=1e-3)


def test_a_learned_alpha_has_a_range() -> None:
    module = anymax.LearnedEntmax((500, 1), low=0.25, high=3.0)
    assert 0.25 < module.alpha.min() < 1 and 2 < module.alpha.max() < 3
    torch.testing.assert_close(anymax.LearnedEntmax(initial=0.5, low=0.0).alpha, torch.tensor([0.5]))
    assert "low=0.25, high=3" in repr(module)
    with pytest.raises(ValueError, match="0 <= low < high, got 2 and 1"):
        anymax.LearnedEntmax(low=2, high=1)


def test_a_clamped_alpha_stops_at_the_least_and_gets_no_gradient_there() -> None:
    module = anymax.LearnedEntmax((400,), clamp=1.01)
    with torch.no_grad():
        module.pre_alpha.mul_(4)
    is_clamped = module.pre_alpha.sigmoid() < 0.01
    assert 10 < is_clamped.sum() < 200 and "clamp=1.01" in repr(module)
    torch.testing.assert_close(module.alpha, torch.clamp(1 + module.pre_alpha.sigmoid(), min=1.01, max=2))
    module = anymax.LearnedEntmax((3, 1), clamp=1.01)
    with torch.no_grad():
        module.pre_alpha.copy_(torch.tensor([[-6.0], [-4.0], [1.0]]))
    module(torch.randn(3, 6)).square().sum().backward()
    assert module.pre_alpha.grad[0] == 0 and (module.pre_alpha.grad[1:] != 0).all()
    with pytest.raises(ValueError, match="clamp must lie strictly between 1 and 2, got"):
        anymax.LearnedEntmax(clamp=2.5)


def tsallis(alpha: float):
    """Omega of entmax, written as in the papers."""
    if alpha == 1:
        return lambda p: (p * p.log()).sum()
    return lambda p: ((p**alpha).sum() - 1) / (alpha * (alpha - 1))


@cache
def solved(alpha: float) -> tuple[Tensor, Tensor]:
    """Scores and what a generic solver makes of them: slow, so once for all engines."""
    scores = torch.randn(6, 5, dtype=torch.float64) * 1.5
    return scores, anymax.regularized_argmax(scores, tsallis(alpha))


@each("alpha", [0.3, 0.5, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_solves_the_regularized_problem_that_defines_it(alpha: float) -> None:
    scores, expected = solved(alpha)
    torch.testing.assert_close(anymax.entmax(scores, alpha), expected, rtol=0, atol=1e-6)


def test_is_softmax_at_one() -> None:
    for shape in [(4, 7), (3, 1000)]:
        scores = torch.randn(shape) * 3
        for alpha in (1.0, torch.tensor(1.0), torch.ones(shape[0], 1)):
            torch.testing.assert_close(anymax.entmax(scores, alpha), torch.softmax(scores, -1), rtol=2e-6, atol=1e-7)


def test_is_the_euclidean_projection_at_two() -> None:
    scores = torch.randn(8, 6, dtype=torch.float64)
    expected = nearest_point(scores, total=1.0, upper=None)
    for alpha in (2.0, torch.full((8, 1), 2.0, dtype=torch.float64)):
        torch.testing.assert_close(anymax.entmax(scores, alpha), expected, rtol=0, atol=1e-7)


@cache
def solved_exactly(alpha: float) -> list[tuple[Tensor, Tensor]]:
    # Nearly equal scores too: there the last entry in has a small probability, which hangs on every digit.
    rows = (torch.randn(5).double(), torch.randn(5).double() * 0.01, torch.tensor([0.0, -0.011]).double())
    return [(scores, entmax_exactly(scores, alpha)) for scores in rows]


@each("alpha", [1.05, 1.6, 2.5, 4.0, 10.0, 30.0])
def test_is_exact_to_double_precision_for_every_alpha(alpha: float) -> None:
    for scores, expected in solved_exactly(alpha):
        torch.testing.assert_close(anymax.entmax(scores, alpha), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_numbers_next_to_one_are_as_good_as_one(dtype: torch.dtype) -> None:
    scores, one = torch.randn(20, 15, dtype=dtype), torch.tensor(1.0, dtype=dtype)
    for steps in (-64, -4, -1, 1, 4, 16, 64):
        alpha = one * (1 + steps * torch.finfo(dtype).eps)
        atol = 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(anymax.entmax(scores, alpha), torch.softmax(scores, -1), rtol=0, atol=atol)


def test_goes_to_argmax_as_alpha_grows() -> None:
    scores = torch.tensor([[0.1, 0.3, 0.25], [0.5, 0.5, -1.0]])
    torch.testing.assert_close(anymax.entmax(scores, 1e6), anymax.argmax(scores), rtol=0, atol=1e-4)


@each("alpha", ALPHAS)
def test_float32_gradients_agree_with_float64_finite_differences(alpha: float) -> None:
    scores = torch.randn(5, 7)
    weights = torch.randn(5, 7)
    leaf, alpha_leaf = scores.clone().requires_grad_(), torch.tensor(alpha, requires_grad=True)
    value = (anymax.entmax(leaf, alpha_leaf) * weights).sum()
    by_scores, by_alpha = torch.autograd.grad(value, (leaf, alpha_leaf))

    def value_at(alpha: float) -> Tensor:
        return (anymax.entmax(scores.double(), alpha) * weights).sum()

    by_difference = slope(value_at, alpha, 1e-5)
    torch.testing.assert_close(by_alpha.double(), by_difference, rtol=1e-3, atol=1e-3)
    direction = torch.randn(5, 7, dtype=torch.float64)

    def value_along(t: float) -> Tensor:
        return (anymax.entmax(scores.double() + t * direction, alpha_leaf.item()) * weights).sum()

    torch.testing.assert_close(
        (by_scores.double() * direction).sum(), slope(value_along, 0.0, 1e-6), rtol=1e-3, atol=1e-3
    )


@each("alpha", [0.99, 0.999, 0.9999999, 1.0, 1.00001, 1.0001, 1.001, 1.01])
def test_the_alpha_gradient_near_one_has_no_noise(alpha: float) -> None:
    scores, weights = torch.randn(200), torch.randn(200) * 100
    gradients = []
    for dtype in (torch.float32, torch.float64):
        leaf = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        gradients += torch.autograd.grad(anymax.entmax(scores.to(dtype), leaf) @ weights.to(dtype), leaf)
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-3, atol=1e-4)


def test_every_derivative_up_to_the_second_is_right_for_scores_and_alpha() -> None:
    scores = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[1.01], [1.4], [1.9], [3.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(anymax.entmax, (scores, alpha), eps=1e-7, atol=1e-5)
    assert torch.autograd.gradgradcheck(anymax.entmax, (scores, alpha), eps=1e-6, atol=1e-3, rtol=1e-3)


@each("shape", [(), (1,), (4, 1, 1), (2, 4, 3, 1), (2, 1, 3, 1)])
def test_alpha_broadcasts_and_its_gradient_comes_back_in_its_shape(shape: tuple[int, ...]) -> None:
    scores = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    alpha = (1 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    probs = anymax.entmax(scores, alpha)
    spread = alpha.expand(2, 4, 3, 1)
    for index in [(0, 0, 0), (1, 3, 2), (0, 2, 1)]:
        alone = anymax.entmax(scores[index], spread[index].item())
        torch.testing.assert_close(probs[index], alone, rtol=0, atol=1e-9)
    (gradient,) = torch.autograd.grad(probs.square().sum(), alpha)
    assert gradient.shape == shape
    assert torch.autograd.gradcheck(lambda a: anymax.entmax(scores, a), (alpha,), eps=1e-7, atol=1e-5)


def test_alpha_broadcasts_along_another_dim() -> None:
    scores, alpha = torch.randn(3, 5, 4), 1 + torch.rand(3, 1, 4)
    probs = anymax.entmax(scores, alpha, dim=1)
    expected = anymax.entmax(scores.movedim(1, -1), alpha.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(probs, expected, rtol=0, atol=0)


def test_support_shrinks_as_alpha_grows() -> None:
    scores = torch.randn(10, 50)
    sizes = torch.stack([(anymax.entmax(scores, alpha) > 0).sum(-1) for alpha in (0.0, 0.5, 1.0, 1.2, 1.5, 2.0, 3.0)])
    assert (sizes.diff(dim=0) <= 0).all() and (sizes[:3] == 50).all() and (sizes[-1] < 10).all()


@each("alpha", [-1e-3, -1.0, math.nan, math.inf])
def test_an_alpha_outside_its_range_is_refused(alpha: float) -> None:
    for value in (alpha, torch.tensor(alpha), torch.tensor([[1.5], [alpha]])):
        with pytest.raises(ValueError, match="alpha must be finite and at least 0"):
            anymax.entmax(torch.randn(2, 3), value)


def test_an_alpha_that_does_not_broadcast_is_refused() -> None:
    for shape in [(3,), (2, 3), (2, 2, 1), (5, 1)]:
        with pytest.raises(ValueError, match="alpha must broadcast against scores with size 1 along dim"):
            anymax.entmax(torch.randn(2, 3), torch.full(shape, 1.5))


def test_an_alpha_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="alpha must be a number or a tensor"):
        anymax.entmax(torch.randn(2, 3), "1.5")
    with pytest.raises(TypeError, match="alpha must be a tensor of real numbers"):
        anymax.entmax(torch.randn(2, 3), torch.tensor(True))


def test_an_alpha_on_another_device_is_refused() -> None:
    alpha = torch.tensor(1.5, device="meta")
    with pytest.raises(ValueError, match="alpha must be on the device of scores, cpu, got meta"):
        anymax.entmax(torch.randn(2, 3), alpha)
    with pytest.raises(ValueError, match="mask must be on the device of scores"):
        anymax.entmax(torch.randn(2, 3), mask=torch.ones(2, 3, dtype=torch.bool, device="meta"))


def test_scores_on_the_meta_device_give_shapes() -> None:
    assert anymax.entmax(torch.randn(2, 3, device="meta")).shape == (2, 3)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_a_traced_module_computes_anew() -> None:
    traced = torch.jit.trace(anymax.Entmax(1.5), torch.randn(3, 4), check_trace=False)
    scores = torch.randn(3, 4)
    torch.testing.assert_close(traced(scores), anymax.entmax(scores, 1.5))


def test_scores_without_a_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="dim must be one of the 0 dimensions"):
        anymax.entmax(torch.tensor(1.0))


def test_the_module_is_the_function() -> None:
    scores, mask = torch.randn(4, 6), torch.rand(4, 6) > 0.3
    module = anymax.Entmax(1.3, dim=0)
    torch.testing.assert_close(module(scores, mask), anymax.entmax(scores, 1.3, dim=0, mask=mask))
    assert "alpha=1.3" in repr(module)
    with pytest.raises(ValueError, match="alpha must be finite"):
        anymax.Entmax(-0.5)
    with pytest.raises(TypeError, match="LearnedEntmax holds alphas that are learned"):
        anymax.Entmax(torch.tensor(1.5))


def test_learned_alphas_start_spread_between_softmax_and_sparsemax() -> None:
    module = anymax.LearnedEntmax(shape=(4000, 1, 1))
    assert module.alpha.shape == (4000, 1, 1)
    assert module.alpha.min() > 1 and module.alpha.max() < 2
    torch.testing.assert_close(module.pre_alpha.std(), torch.tensor(1.0), rtol=0.05, atol=0)


def test_learned_alpha_starts_where_the_caller_says_and_learns() -> None:
    module = anymax.LearnedEntmax(shape=(2, 1, 1), initial=1.2)
    torch.testing.assert_close(module.alpha, torch.full((2, 1, 1), 1.2))
    scores = torch.randn(3, 2, 4, 6)
    optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
    sizes = []
    for _ in range(60):
        # Reward sparsity in the first head only.
        loss = -module(scores)[:, 0].square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sizes.append((module(scores)[:, 0] > 0).sum().item())
    first, second = module.alpha.flatten().tolist()
    assert first > 1.5 and second == pytest.approx(1.2)
    assert sizes[-1] < sizes[0]


def test_learned_alpha_refuses_a_start_outside_its_range() -> None:
    for initial in (1.0, 2.0, 2.5):
        with pytest.raises(ValueError, match="initial must lie strictly between 1 and 2"):
            anymax.LearnedEntmax(initial=initial)


def test_learned_alpha_in_half_precision_keeps_off_the_ends() -> None:
    module = anymax.LearnedEntmax(initial=1.001).bfloat16()
    assert 1 < module.alpha.item() < 1.01
    assert module(torch.randn(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_learned_alpha_survives_the_state_dict() -> None:
    first, second = anymax.LearnedEntmax(shape=(3, 1, 1)), anymax.LearnedEntmax(shape=(3, 1, 1))
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.alpha, first.alpha)


def test_works_under_autocast_and_inference_mode() -> None:
    scores = torch.randn(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(anymax.entmax(scores), anymax.entmax(scores))
    with torch.inference_mode():
        inside = anymax.entmax(scores)
    leaf = scores.clone().requires_grad_()
    outside = anymax.entmax(leaf)
    outside[0, 0].backward()
    torch.testing.assert_close(inside, outside.detach())


def test_an_alpha_first_used_in_inference_mode_can_be_differentiated_later() -> None:
    # No other test uses this alpha.
    scores = torch.randn(3, 5)
    with torch.inference_mode():
        anymax.entmax(scores, 1.4375)
    scores.requires_grad_()
    (grad,) = torch.autograd.grad(anymax.entmax(scores, 1.4375).square().sum(), scores)
    assert bool(grad.isfinite().all())
