"""The entmax loss of a linear layer: lists and dense blocks, a learned alpha, margins, hard numbers.

What it shares with the other linear losses is in contracts/test_linear_loss.py.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import anymax
from anymax import entmax_loss, linear_entmax_loss
from anymax.kernels import library
from anymax.kernels.entmax import native
from tests.contracts.linear_losses import assert_same
from tests.each import each
from tests.kernels.test_cross_entropy import threads
from tests.oracles import slope

REDUCTIONS = ["mean", "sum", "none"]


def layer(
    num_targets: int, n: int, dim: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    """Hidden states, a weight, a bias, all with gradients, and targets; the larger `scale`, the fewer are chosen."""
    hidden = torch.randn(num_targets, dim, dtype=dtype).requires_grad_()
    weight = (scale * torch.randn(n, dim, dtype=dtype)).requires_grad_()
    return hidden, weight, torch.randn(n, dtype=dtype).requires_grad_(), torch.randint(n, (num_targets,))


def named(*tensors: Tensor) -> dict[str, Tensor]:
    return {str(i): tensor for i, tensor in enumerate(tensors)}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each block had whose products were those of lists."""
    if library.why_missing() is not None:
        pytest.skip(library.why_missing())
    blocks: list[int] = []
    add_products = native.add_products

    def spy(lists_RN: Tensor, *arguments: Tensor, **options: Tensor | None) -> None:
        blocks.append(lists_RN.shape[0])
        add_products(lists_RN, *arguments, **options)

    monkeypatch.setattr(native, "add_products", spy)
    return blocks


@each("alpha", [0.2, 0.5, 0.999, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_equals_the_loss_of_all_scores_whatever_the_width_of_the_choice(engine: str, alpha: float) -> None:
    for scale, smoothing, reduction, budget in ((0.01, 0.1, "mean", 2), (1.0, 0.0, "none", 5), (8.0, 0.3, "sum", 100)):
        h, w, b, target = layer(9, 300, 5, scale=scale)
        target[4] = -100
        options = {"reduction": reduction, "label_smoothing": smoothing}
        got = linear_entmax_loss(h, w, target, alpha, b, memory_budget=budget * 8 * 300, **options)
        assert_same(got, entmax_loss(functional.linear(h, w, b), target, alpha, **options), named(h, w, b))


def test_blocks_of_few_chosen_are_listed_and_blocks_of_many_are_not(listed: list[int]) -> None:
    h, w, b, target = layer(8, 400, 5, scale=8.0)
    linear_entmax_loss(h, w, target, 1.5, b, memory_budget=4 * 8 * 400).backward()
    assert listed == [4, 4]
    linear_entmax_loss(h, w, target, 1.0, b).backward()
    linear_entmax_loss(0.001 * h, w, target, 1.5).backward()
    assert listed == [4, 4]
    with torch.no_grad():
        linear_entmax_loss(h, w, target, 1.5, b)
    assert listed == [4, 4]


@pytest.mark.parametrize("wide_first", [True, False])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_listed_and_dense_blocks_add_up(listed: list[int], wide_first: bool, reduction: str) -> None:
    h, w, b, target = layer(12, 400, 5, scale=8.0)
    is_wide = (torch.arange(12) < 4) == wide_first
    h.data[is_wide] *= 1e-3
    b.data *= 1e-3
    got = linear_entmax_loss(h, w, target, 1.5, b, reduction=reduction, memory_budget=4 * 8 * 400, label_smoothing=0.1)
    wanted = entmax_loss(functional.linear(h, w, b), target, 1.5, reduction=reduction, label_smoothing=0.1)
    assert_same(got, wanted, named(h, w, b))
    assert listed == [4, 4] if wide_first else listed == [4]


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_lists_leave_out_what_is_frozen(listed: list[int], frozen: int) -> None:
    *tensors, target = layer(6, 400, 5, scale=8.0)
    tensors[frozen].requires_grad_(False)
    h, w, b = tensors
    learners = named(*(tensor for tensor in tensors if tensor.requires_grad))
    got = linear_entmax_loss(h, w, target, 1.5, b, label_smoothing=0.1)
    assert_same(got, entmax_loss(functional.linear(h, w, b), target, 1.5, label_smoothing=0.1), learners)
    assert listed == [6]


def test_float32_lists_are_near_the_float64_loss(listed: list[int]) -> None:
    h, w, b, target = layer(40, 2000, 16, scale=2.0, dtype=torch.float32)
    wide = [tensor.detach().double().requires_grad_() for tensor in (h, w, b)]
    for alpha in (1.3, 1.5, 2.0):
        got = linear_entmax_loss(h, w, target, alpha, b)
        wanted = entmax_loss(functional.linear(*wide), target, alpha)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-5)
        ours, theirs = torch.autograd.grad(got, (h, w, b)), torch.autograd.grad(wanted, wide)
        for gradient, exact in zip(ours, theirs, strict=True):
            assert (gradient - exact).norm() < 1e-5 * exact.norm()
    assert listed == [40, 40, 40]


def test_is_cross_entropy_at_one_but_for_the_entropy_of_the_target() -> None:
    h, w, b, target = layer(7, 12, 4)
    for smoothing in (0.0, 0.2):
        soft = torch.full((12,), smoothing / 12, dtype=torch.float64)
        soft[0] += 1 - smoothing
        got = linear_entmax_loss(h, w, target, 1.0, b, label_smoothing=smoothing)
        wanted = anymax.linear_cross_entropy(h, w, target, b, label_smoothing=smoothing)
        assert_same(got, wanted - torch.special.entr(soft).sum(), named(h, w, b))


def test_a_won_margin_costs_nothing_and_moves_nothing(engine: str) -> None:
    weight = torch.eye(60, 8).requires_grad_()
    hidden = (3 * torch.eye(8)[:5]).requires_grad_()
    bias = torch.zeros(60, requires_grad=True)
    loss = linear_entmax_loss(hidden, weight, torch.arange(5), 1.5, bias)
    loss.backward()
    assert loss == 0
    assert all((tensor.grad == 0).all() for tensor in (hidden, weight, bias))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_constant_added_to_all_scores_changes_nothing(engine: str, smoothing: float) -> None:
    # Powers of two, so that the moved scores are exact in float32.
    h = (torch.randn(6, 4) * 4).round() / 4
    w = (torch.randn(50, 4) * 4).round() / 4
    target = torch.randint(50, (6,))
    for alpha in (1.0, 1.5, 2.0):
        losses = [
            linear_entmax_loss(
                h, w, target, alpha, torch.full((50,), offset), reduction="none", label_smoothing=smoothing
            )
            for offset in (0.0, 4096.0)
        ]
        torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-5)


@each("alpha", [1.0, 1.0000005, 1.00001, 1.01, 1.3, 1.5, 2.0, 4.0])
@each("smoothing", [0.0, 0.1])
def test_the_gradient_of_alpha_agrees_with_float64_differences(engine: str, alpha: float, smoothing: float) -> None:
    h, w, b, target = layer(6, 120, 5, scale=2.0)
    step = 1e-5

    def loss(at: float) -> Tensor:
        return entmax_loss(functional.linear(h, w, b).detach(), target, at, label_smoothing=smoothing)

    # Alpha ends at 1: the derivative there is nearly that of a point nearby.
    nearby = max(alpha, 1 + 3 * step)
    wanted = slope(loss, nearby, step)
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.float32, 1e-3)):
        leaf = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        tensors = [tensor.detach().to(dtype) for tensor in (h, w, b)]
        got = linear_entmax_loss(*tensors[:2], target, leaf, tensors[2], label_smoothing=smoothing)
        (gradient,) = torch.autograd.grad(got, leaf)
        torch.testing.assert_close(
            gradient.double(), wanted, rtol=tolerance, atol=2 * tolerance + 30 * (nearby - alpha)
        )


ALPHA_SHAPES: list[tuple[int, ...]] = [(), (1,), (1, 1), (4, 1), (3, 1, 1), (3, 4, 1), (1, 4, 1)]


@each("shape", ALPHA_SHAPES)
@each("reduction", REDUCTIONS)
def test_alpha_broadcasts_against_the_targets_and_gets_its_gradient(shape: tuple[int, ...], reduction: str) -> None:
    alpha = (1.1 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    h, w, b, _ = layer(12, 60, 5, scale=2.0)
    target = torch.randint(60, (3, 4))
    target[1, 2] = -100
    hidden = h.view(3, 4, 5)
    for smoothing in (0.0, 0.1):
        options = {"reduction": reduction, "label_smoothing": smoothing}
        got = linear_entmax_loss(hidden, w, target, alpha, b, memory_budget=5 * 8 * 60, **options)
        wanted = entmax_loss(functional.linear(hidden, w, b), target, alpha, **options)
        assert_same(got, wanted, named(h, w, b, alpha))


def test_an_alpha_learned_through_a_sigmoid_gets_its_gradient() -> None:
    raw = torch.tensor(-9.0, dtype=torch.float64, requires_grad=True)
    h, w, b, target = layer(7, 30, 4)

    def alpha() -> Tensor:
        return 1 + torch.sigmoid(raw)

    got = linear_entmax_loss(h, w, target, alpha(), b)
    assert_same(got, entmax_loss(functional.linear(h, w, b), target, alpha()), named(h, w, b, raw))


def test_alpha_of_another_precision_serves() -> None:
    h, w, b, target = layer(5, 30, 4, dtype=torch.float32)
    for dtype in (torch.float64, torch.bfloat16):
        alpha = torch.tensor(1.5, dtype=dtype, requires_grad=True)
        loss = linear_entmax_loss(h, w, target, alpha, b)
        torch.testing.assert_close(loss, linear_entmax_loss(h, w, target, 1.5, b))
        loss.backward()
        assert alpha.grad.dtype == dtype


def test_a_class_at_minus_infinity_is_left_out(engine: str) -> None:
    h, w, _, target = layer(6, 200, 4, scale=4.0, dtype=torch.float32)
    bias = torch.zeros(200)
    bias[100:] = -torch.inf
    target = target % 100
    for alpha in (1.0, 1.5):
        got = linear_entmax_loss(h, w, target, alpha, bias)
        torch.testing.assert_close(got, entmax_loss(h @ w[:100].T, target, alpha))
        (gradient,) = torch.autograd.grad(got, w)
        assert (gradient[100:] == 0).all() and gradient.isfinite().all()
        assert linear_entmax_loss(h, w, target + 100, alpha, bias) == torch.inf


def test_the_bits_do_not_depend_on_the_number_of_threads(listed: list[int]) -> None:
    h, w, b, target = layer(50, 3000, 8, scale=4.0, dtype=torch.float32)
    alpha = torch.tensor(1.5, requires_grad=True)
    # Dense products are torch's, and theirs may depend on it: here the scores are exact.
    for tensor in (h, w, b):
        tensor.data.mul_(4).round_().div_(4)
    results = []
    for count in (1, 2, 5):
        with threads(count):
            loss = linear_entmax_loss(h, w, target, alpha, b)
            results.append((loss.detach(), *torch.autograd.grad(loss, (h, w, b, alpha))))
    for result in results[1:]:
        assert all(got.equal(wanted) for got, wanted in zip(result, results[0], strict=True))
    assert listed == [50, 50, 50]


def wrong_alpha(alpha: object) -> Callable[[], Tensor]:
    h, w, b, target = layer(4, 9, 3)
    return lambda: linear_entmax_loss(h, w, target, alpha, b)


@each("alpha", [-0.5, float("nan"), float("inf")])
def test_an_alpha_below_zero_is_refused(engine: str, alpha: float) -> None:
    message = "alpha must be finite and at least 0, got "
    for given in (alpha, torch.tensor(alpha), torch.tensor([[1.5], [alpha], [1.5], [1.5]])):
        with pytest.raises(ValueError, match=message + str(alpha)[:4]):
            wrong_alpha(given)()


def test_an_alpha_of_the_wrong_shape_or_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha must broadcast .* \(4, 1\), got \(4,\)"):
        wrong_alpha(torch.full((4,), 1.5))()
    with pytest.raises(TypeError, match="alpha must be a number or a tensor, got str"):
        wrong_alpha("1.5")()
    with pytest.raises(TypeError, match=r"alpha must be a tensor of real numbers, got torch\.bool"):
        wrong_alpha(torch.tensor(True))()


def test_hidden_states_must_be_one_tensor_of_floats() -> None:
    h, w, _, target = layer(4, 9, 3)
    with pytest.raises(TypeError, match=r"hidden must be a floating-point tensor .* got list"):
        linear_entmax_loss([h], w, target)
    with pytest.raises(TypeError, match=r"hidden must be a floating-point tensor .* got torch\.int64"):
        linear_entmax_loss(h.long(), w, target)
    with pytest.raises(TypeError, match="hidden must be a floating-point tensor with at least one dimension"):
        linear_entmax_loss(torch.tensor(1.0), w, target)
