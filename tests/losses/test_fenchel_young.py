"""The generic Fenchel-Young loss, on mappings whose loss is known and on one whose loss is not written anywhere."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import anymax


def negative_entropy(probs: Tensor) -> Tensor:
    return -torch.special.entr(probs).sum()


def half_square(probs: Tensor) -> Tensor:
    return (probs @ probs - 1) / 2


def norm(probs: Tensor) -> Tensor:
    return probs.square().sum().sqrt()


def half_tsallis(probs: Tensor) -> Tensor:
    """Omega of entmax at alpha 0.5, which no probability of zero spoils."""
    return 4 - 4 * torch.where(probs > 0, probs, 0).sqrt().sum()


FAMILY = {
    "entmax": (lambda scores: anymax.entmax(scores, 0.5), half_tsallis),
    "softmax": (anymax.softmax, negative_entropy),
    "sparsemax": (anymax.sparsemax, half_square),
    "normmax": (anymax.normmax, norm),
}


@pytest.mark.parametrize(("name", "alpha"), [("entmax", 0.5), ("softmax", 1.0), ("sparsemax", 2.0)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_is_the_entmax_loss_of_the_same_alpha(name: str, alpha: float, reduction: str) -> None:
    mapping, omega = FAMILY[name]
    scores, classes = torch.randn(2, 3, 5), torch.tensor([[0, 4, -100], [2, 2, 1]])
    for target in (classes, torch.softmax(torch.randn(2, 3, 5), -1)):
        options = {"reduction": reduction, "label_smoothing": 0.1}
        loss = anymax.fenchel_young_loss(scores, target, mapping=mapping, omega=omega, **options)
        torch.testing.assert_close(loss, anymax.entmax_loss(scores, target, alpha, **options), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(FAMILY))
def test_the_gradient_is_the_answer_minus_the_target_and_the_second_derivative_is_right(name: str) -> None:
    mapping, omega = FAMILY[name]
    scores, target = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 1])

    def loss(scores: Tensor) -> Tensor:
        return anymax.fenchel_young_loss(scores, target, mapping=mapping, omega=omega, reduction="sum")

    (gradient,) = torch.autograd.grad(loss(scores), scores)
    torch.testing.assert_close(gradient, mapping(scores).detach() - functional.one_hot(target, 4))
    assert torch.autograd.gradcheck(loss, (scores,), eps=1e-7, atol=1e-6)
    assert torch.autograd.gradgradcheck(loss, (scores,), eps=1e-6, atol=1e-4)


@pytest.mark.parametrize("name", list(FAMILY))
def test_is_never_negative_and_zero_where_the_answer_is_the_target(name: str) -> None:
    mapping, omega = FAMILY[name]
    scores = torch.randn(20, 6, dtype=torch.float64)
    targets = mapping(torch.randn(20, 6, dtype=torch.float64))
    losses = anymax.fenchel_young_loss(scores, targets, mapping=mapping, omega=omega, reduction="none")
    assert (losses > 0).all()
    matched = anymax.fenchel_young_loss(scores, mapping(scores), mapping=mapping, omega=omega, reduction="none")
    assert matched.abs().max() < 1e-9


def test_a_parameter_of_omega_gets_its_gradient() -> None:
    scores, target = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 3, 1])
    alpha = torch.tensor(1.6, dtype=torch.float64, requires_grad=True)

    def loss(alpha: Tensor) -> Tensor:
        def omega(probs: Tensor) -> Tensor:
            return ((probs**alpha).sum() - 1) / (alpha * (alpha - 1))

        return anymax.fenchel_young_loss(scores, target, mapping=lambda s: anymax.entmax(s, alpha), omega=omega)

    (expected,) = torch.autograd.grad(anymax.entmax_loss(scores, target, alpha), alpha)
    torch.testing.assert_close(torch.autograd.grad(loss(alpha), alpha)[0], expected)


def test_minus_infinity_and_ignored_rows_are_safe() -> None:
    scores = torch.tensor([[0.3, -torch.inf, 0.1], [1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = anymax.fenchel_young_loss(scores, torch.tensor([0, -100]), mapping=anymax.sparsemax, omega=half_square)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss.isfinite() and gradient.isfinite().all() and (gradient[1] == 0).all()
    none = anymax.fenchel_young_loss(scores, torch.tensor([-100, -100]), mapping=anymax.sparsemax, omega=half_square)
    assert none == 0


def test_an_empty_batch_costs_nothing() -> None:
    scores, target = torch.randn(0, 3), torch.zeros(0, dtype=torch.long)
    assert anymax.fenchel_young_loss(scores, target, mapping=anymax.sparsemax, omega=half_square) == 0
