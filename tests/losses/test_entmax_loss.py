"""Entmax losses: cross-entropy at one end, and everything a training loop does with a loss."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import anymax
from tests.each import each
from tests.oracles import slope

pytestmark = pytest.mark.usefixtures("engine")
ALPHAS = [0.05, 0.5, 0.999, 1.0, 1.00001, 1.05, 1.3, 1.5, 1.8, 2.0, 3.0]


def omega(probs: Tensor, alpha: float) -> Tensor:
    """Omega of entmax, written as in the papers."""
    if alpha == 1:
        return torch.special.xlogy(probs, probs).sum(-1)
    return ((probs**alpha).sum(-1) - 1) / (alpha * (alpha - 1))


@each("alpha", [0.2, 0.5, 0.9, 1.0, 1.3, 1.5, 2.0, 3.0])
def test_is_the_fenchel_young_loss_of_its_definition(alpha: float) -> None:
    scores, target = torch.randn(6, 5, dtype=torch.float64), torch.randint(5, (6,))
    probs = anymax.entmax(scores, alpha)
    expected = (probs * scores).sum(-1) - omega(probs, alpha) - scores.gather(1, target[:, None])[:, 0]
    losses = anymax.entmax_loss(scores, target, alpha, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-9)


def test_is_cross_entropy_at_one() -> None:
    scores, target = torch.randn(4, 3, 7), torch.randint(7, (4, 3))
    for smoothing in (0.0, 0.1):
        # With smoothed labels the two differ by the entropy of the target, which has no gradient.
        soft = torch.full((7,), smoothing / 7)
        soft[0] += 1 - smoothing
        entropy = torch.special.entr(soft).sum()
        loss = anymax.entmax_loss(scores, target, 1.0, label_smoothing=smoothing)
        expected = functional.cross_entropy(scores.reshape(-1, 7), target.reshape(-1), label_smoothing=smoothing)
        torch.testing.assert_close(loss, expected - entropy)


@each("alpha", ALPHAS)
def test_the_gradient_is_the_answer_minus_the_target(alpha: float) -> None:
    scores, target = torch.randn(6, 40, requires_grad=True), torch.randint(40, (6,))
    (gradient,) = torch.autograd.grad(anymax.entmax_loss(scores, target, alpha, reduction="sum"), scores)
    expected = anymax.entmax(scores, alpha).detach() - functional.one_hot(target, 40)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)


def test_towards_alpha_zero_a_class_costs_as_many_times_one_over_alpha_as_there_are_others() -> None:
    scores, target = torch.randn(3, 20, dtype=torch.float64), torch.tensor([0, 7, 19])
    for alpha in (1e-6, 1e-9, 1e-12):
        leaf = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        losses = anymax.entmax_loss(scores, target, leaf, reduction="none")
        torch.testing.assert_close(losses * alpha, torch.full((3,), 19.0).double(), rtol=10 * alpha, atol=0)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        torch.testing.assert_close(gradient * alpha**2, torch.tensor(-57.0).double(), rtol=10 * alpha + 1e-14, atol=0)


def test_values_and_gradients_are_continuous_through_one() -> None:
    scores, target = torch.randn(6, 30), torch.randint(30, (6,))
    results = []
    for alpha in (1 - 2**-23, 1.0, 1 + 2**-23):
        leaf = torch.tensor(alpha, requires_grad=True)
        loss = anymax.entmax_loss(scores, target, leaf)
        results.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    for other in (results[0], results[2]):
        torch.testing.assert_close(other, results[1], rtol=5e-6, atol=0)


def test_a_won_margin_costs_nothing() -> None:
    scores = torch.tensor([[3.0, 0.5, 0.9]], requires_grad=True)
    loss = anymax.entmax_loss(scores, torch.tensor([0]), 1.5)
    assert loss == 0
    loss.backward()
    assert (scores.grad == 0).all()


@each("reduction", ["none", "mean", "sum"])
@each("soft", [False, True])
def test_gradients_by_scores_and_alpha_are_right_for_every_reduction(reduction: str, soft: bool) -> None:
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    alpha = (0.3 + 1.6 * torch.rand(2, 3, 1, dtype=torch.float64)).requires_grad_()
    target = (
        torch.softmax(torch.randn(2, 3, 4, dtype=torch.float64), -1)
        if soft
        else torch.tensor([[0, 3, 1], [2, -100, 0]])
    )

    def loss(scores: Tensor, alpha: Tensor) -> Tensor:
        return anymax.entmax_loss(scores, target, alpha, reduction=reduction, label_smoothing=0.0 if soft else 0.05)

    assert torch.autograd.gradcheck(loss, (scores, alpha), eps=1e-7, atol=1e-5)
    assert torch.autograd.gradgradcheck(loss, (scores, alpha), eps=1e-6, atol=1e-3, rtol=1e-3)


@each("alpha", [0.1, 0.5, 0.99, 0.9999999, 1.0, 1.00001, 1.01, 1.5, 2.0, 4.0])
def test_the_float32_alpha_gradient_agrees_with_float64_differences(alpha: float) -> None:
    scores, target = torch.randn(5, 30), torch.randint(30, (5,))
    leaf = torch.tensor(alpha, requires_grad=True)
    (gradient,) = torch.autograd.grad(anymax.entmax_loss(scores, target, leaf), leaf)
    step = 4e-6
    expected = slope(lambda a: anymax.entmax_loss(scores.double(), target, a), leaf.item(), step)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-3, atol=1e-4)


@each("alpha", ALPHAS)
def test_a_distribution_as_target_is_matched_at_no_cost(alpha: float) -> None:
    scores = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    target = anymax.entmax(scores, alpha).detach()
    loss = anymax.entmax_loss(scores, target, alpha)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert abs(loss.item()) < 1e-12 and gradient.abs().max() < 1e-9
    assert (anymax.entmax_loss(torch.randn(5, 8).double(), target, alpha, reduction="none") > -1e-12).all()


def test_ignored_rows_count_for_nothing() -> None:
    scores, target = torch.randn(4, 5, requires_grad=True), torch.tensor([1, -100, 2, -100])
    kept = target != -100
    for reduction in ("mean", "sum"):
        loss = anymax.entmax_loss(scores, target, reduction=reduction)
        torch.testing.assert_close(loss, anymax.entmax_loss(scores[kept], target[kept], reduction=reduction))
    losses = anymax.entmax_loss(scores, target, reduction="none")
    assert losses.shape == (4,) and (losses[~kept] == 0).all()
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert (gradient[~kept] == 0).all() and (gradient[kept] != 0).any()


def test_any_ignore_index_works() -> None:
    scores, target = torch.randn(3, 5), torch.tensor([1, 3, 3])
    loss = anymax.entmax_loss(scores, target, ignore_index=3)
    torch.testing.assert_close(loss, anymax.entmax_loss(scores[:1], target[:1]))


@each("reduction", ["mean", "sum", "none"])
def test_all_rows_ignored_gives_zero(reduction: str) -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    loss = anymax.entmax_loss(scores, torch.full((3,), -100), reduction=reduction)
    assert (loss == 0).all()
    loss.sum().backward()
    assert (scores.grad == 0).all()
    assert anymax.entmax_loss(torch.randn(0, 5), torch.zeros(0, dtype=torch.long)) == 0


@each("alpha", ALPHAS)
def test_minus_infinity_elsewhere_is_safe(alpha: float) -> None:
    scores = torch.tensor([[0.3, -torch.inf, 0.1], [-torch.inf, 2.0, -torch.inf]], requires_grad=True)
    soft = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    for target in (torch.tensor([2, 1]), soft):
        loss = anymax.entmax_loss(scores, target, alpha)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert loss.isfinite() and gradient.isfinite().all()


def test_a_target_that_cannot_be_chosen_costs_infinity() -> None:
    scores = torch.tensor([[0.3, -torch.inf]])
    assert anymax.entmax_loss(scores, torch.tensor([1])) == torch.inf


def test_a_large_offset_changes_nothing() -> None:
    scores, target = (torch.randn(6, 9) * 64).round() / 64, torch.randint(9, (6,))
    for alpha in (0.5, 1.0, 1.3, 1.5, 2.0):
        moved = anymax.entmax_loss(scores + 4096, target, alpha, reduction="none")
        torch.testing.assert_close(
            moved, anymax.entmax_loss(scores, target, alpha, reduction="none"), rtol=0, atol=1e-6
        )


def test_label_smoothing_is_a_soft_target() -> None:
    scores, target = torch.randn(4, 6), torch.tensor([0, 5, -100, 2])
    soft = 0.8 * functional.one_hot(target.clamp(min=0), 6) + 0.2 / 6
    smoothed = anymax.entmax_loss(scores, target, reduction="none", label_smoothing=0.2)
    expected = anymax.entmax_loss(scores, soft, reduction="none") * (target != -100)
    torch.testing.assert_close(smoothed, expected)


def test_sparsemax_loss_is_the_one_at_two() -> None:
    scores, target = torch.randn(4, 6), torch.randint(6, (4,))
    for reduction in ("none", "mean", "sum"):
        loss = anymax.sparsemax_loss(scores, target, reduction=reduction)
        torch.testing.assert_close(loss, anymax.entmax_loss(scores, target, 2.0, reduction=reduction))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    scores, target = torch.randn(4, 600, dtype=dtype, requires_grad=True), torch.randint(600, (4,))
    loss = anymax.entmax_loss(scores, target)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, anymax.entmax_loss(scores.detach().float(), target).to(dtype))
    loss.backward()
    assert scores.grad.dtype == dtype


def test_compiles_whole_with_a_learned_alpha() -> None:
    torch._dynamo.reset()
    scores, target = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 5, -100, 2])
    alpha = torch.tensor(1.4, requires_grad=True)
    compiled = torch.compile(anymax.entmax_loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(scores, target, alpha), (scores, alpha))
    torch.testing.assert_close(got, torch.autograd.grad(anymax.entmax_loss(scores, target, alpha), (scores, alpha)))


def test_fake_tensors_give_shapes() -> None:
    with torch._subclasses.FakeTensorMode():
        loss = anymax.entmax_loss(torch.randn(3, 4), torch.zeros(3, dtype=torch.long), reduction="none")
    assert loss.shape == (3,)


def test_vmap_is_a_loop_and_passes_gradients() -> None:
    scores, target = torch.randn(3, 4, 5, requires_grad=True), torch.randint(5, (3, 4))
    losses = torch.vmap(anymax.entmax_loss)(scores, target)
    expected = torch.stack([anymax.entmax_loss(s, t) for s, t in zip(scores, target, strict=True)])
    torch.testing.assert_close(losses, expected)
    got, wanted = (torch.autograd.grad(value.sum(), scores)[0] for value in (losses, expected))
    torch.testing.assert_close(got, wanted)


@each("target", [torch.tensor([0, 5]), torch.tensor([-1, 0]), torch.tensor([0, 100])])
def test_a_target_out_of_range_is_refused(target: Tensor) -> None:
    with pytest.raises(ValueError, match="target must be a class from 0 to 4"):
        anymax.entmax_loss(torch.randn(2, 5), target)


def test_what_cannot_be_a_target_is_refused() -> None:
    scores = torch.randn(2, 5)
    with pytest.raises(ValueError, match="a target of classes must have the shape of scores less the last"):
        anymax.entmax_loss(scores, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="a target of distributions must have the shape of scores"):
        anymax.entmax_loss(scores, torch.rand(2, 4))
    rule = "target must be a distribution in every row: no entry below 0, and a sum of 1"
    for value, got in ((-1.0, "an entry of -1.0"), (torch.nan, "an entry of nan"), (1.0, "a sum of 5.0; divide it by")):
        with pytest.raises(ValueError, match=f"{rule}, got {got}"):
            anymax.entmax_loss(scores, torch.full((2, 5), value))
    with pytest.raises(ValueError, match=r"at least one class in the last dimension, got shape \(2, 0\)"):
        anymax.entmax_loss(torch.randn(2, 0), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="target must be on the device of scores"):
        anymax.entmax_loss(scores, torch.zeros(2, dtype=torch.long, device="meta"))
    with pytest.raises(TypeError, match="target must hold classes"):
        anymax.entmax_loss(scores, torch.zeros(2, dtype=torch.bool))
    with pytest.raises(TypeError, match="target must be a tensor"):
        anymax.entmax_loss(scores, [0, 1])
    with pytest.raises(TypeError, match="scores must be a floating-point tensor"):
        anymax.entmax_loss(torch.ones(2, 5, dtype=torch.long), torch.zeros(2, dtype=torch.long))


def test_wrong_options_are_refused() -> None:
    scores, target = torch.randn(2, 5), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none"):
        anymax.entmax_loss(scores, target, reduction="average")
    with pytest.raises(ValueError, match="label_smoothing must be between 0 and 1"):
        anymax.entmax_loss(scores, target, label_smoothing=1.5)
    with pytest.raises(ValueError, match="alpha must be finite and at least 0"):
        anymax.entmax_loss(scores, target, -0.5)
    for zero in (0, 0.0, torch.tensor(0.0)):
        with pytest.raises(ValueError, match="alpha must be above 0 for a loss"):
            anymax.entmax_loss(scores, target, zero)
    with pytest.raises(ValueError, match="alpha must broadcast"):
        anymax.entmax_loss(scores, target, torch.full((2,), 1.5))
