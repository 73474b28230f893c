"""The loss of a mixture of softmaxes over a linear layer: one expert, equal experts, experts that are off.

What it shares with the other linear losses is in contracts/test_linear_loss.py.
"""

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax import linear_cross_entropy, linear_mixture_loss
from tests.contracts.linear_losses import assert_same
from tests.each import each

REDUCTIONS = ["mean", "sum", "none"]


def mixture(num_targets: int, num_experts: int, n: int, dim: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Experts, prior, weight and bias, all with gradients."""
    shapes = ((num_targets, num_experts, dim), (num_targets, num_experts), (n, dim), (n,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def named(*tensors: Tensor) -> dict[str, Tensor]:
    return {str(i): tensor for i, tensor in enumerate(tensors)}


def by_definition(
    experts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, target: Tensor, transform: nn.Module | None = None
) -> Tensor:
    """One loss per target, as the definition reads: probabilities are mixed, and then there is one logarithm."""
    scores = experts @ weight.T + bias
    probs = torch.softmax(scores if transform is None else transform(scores), -1)
    mixed = (torch.softmax(prior, -1)[..., None] * probs).sum(-2)
    return -mixed.gather(-1, target[..., None])[..., 0].log()


@each("num_experts", [1, 2, 5])
@each("transform", [None, anymax.PLIF(30, 4.0, random_start=True), anymax.Sig(), nn.Tanh()])
def test_is_the_loss_of_the_definition(engine: str, num_experts: int, transform: nn.Module | None) -> None:
    tensors, target = mixture(7, num_experts, 11, 4), torch.randint(11, (7,))
    parameters = []
    if transform is not None:
        parameters = list(transform.double().parameters())
    for budget in (1, 3, 100):
        experts, prior, weight, bias = tensors
        got = linear_mixture_loss(
            experts,
            prior,
            weight,
            target,
            bias,
            transform=transform,
            reduction="none",
            memory_budget=budget * num_experts * 11 * 8,
        )
        assert_same(got, by_definition(*tensors, target, transform), named(*tensors, *parameters))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_one_expert_is_cross_entropy_whatever_its_prior(reduction: str) -> None:
    (experts, prior, weight, bias), target = mixture(8, 1, 12, 3), torch.randint(12, (8,))
    target[2] = -100
    got = linear_mixture_loss(experts, prior, weight, target, bias, reduction=reduction)
    wanted = linear_cross_entropy(experts[:, 0], weight, target, bias, reduction=reduction)
    assert_same(got, wanted, named(experts, weight, bias))
    loss = linear_mixture_loss(experts, prior, weight, target, bias, reduction=reduction)
    assert (torch.autograd.grad(loss.sum(), prior)[0].abs() < 1e-15).all()


def test_equal_experts_are_one_expert() -> None:
    (experts, prior, weight, bias), target = mixture(8, 1, 12, 3), torch.randint(12, (8,))
    alike, prior = experts.expand(8, 4, 3), torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    got = linear_mixture_loss(alike, prior, weight, target, bias)
    assert_same(got, linear_cross_entropy(experts[:, 0], weight, target, bias), named(experts, weight, bias))
    loss = linear_mixture_loss(alike, prior, weight, target, bias)
    assert (torch.autograd.grad(loss, prior)[0].abs() < 1e-15).all()


def test_the_order_of_experts_does_not_matter() -> None:
    (experts, prior, weight, bias), target = mixture(8, 4, 12, 3), torch.randint(12, (8,))
    order = torch.tensor([2, 0, 3, 1])
    got = linear_mixture_loss(experts[:, order], prior[:, order], weight, target, bias)
    assert_same(got, linear_mixture_loss(experts, prior, weight, target, bias), named(experts, prior, weight, bias))


def test_an_expert_with_a_prior_of_minus_infinity_is_off(engine: str) -> None:
    (experts, prior, weight, bias), target = mixture(6, 3, 9, 4), torch.randint(9, (6,))
    prior.data[:, 1] = -torch.inf
    loss = linear_mixture_loss(experts, prior, weight, target, bias)
    torch.testing.assert_close(loss, linear_mixture_loss(experts[:, ::2], prior[:, ::2], weight, target, bias))
    by_experts, by_prior = torch.autograd.grad(loss, (experts, prior))
    assert (by_experts[:, 1] == 0).all() and (by_prior[:, 1] == 0).all()
    assert by_experts.isfinite().all() and by_prior.isfinite().all()


def test_an_expert_that_excludes_the_target_leaves_it_to_the_others(engine: str) -> None:
    experts = torch.tensor([[[200.0, 0.0], [0.0, 1.0]]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], requires_grad=True)
    prior = torch.zeros(1, 2, requires_grad=True)
    loss = linear_mixture_loss(experts, prior, weight, torch.tensor([1]))
    # The first expert gives the target nothing a float can hold; the second has half the say.
    wanted = -torch.log(0.5 * torch.softmax(torch.tensor([0.0, 1.0]), 0)[1])
    torch.testing.assert_close(loss, wanted)
    loss.backward()
    torch.testing.assert_close(prior.grad, torch.tensor([[0.5, -0.5]]))
    assert (experts.grad[:, 0] == 0).all() and experts.grad.isfinite().all()


def test_losses_too_large_for_a_probability_are_exact() -> None:
    experts = torch.tensor([[[300.0], [200.0]]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]])
    loss = linear_mixture_loss(experts, torch.zeros(1, 2), weight, torch.tensor([1]))
    torch.testing.assert_close(loss, 200.0 + torch.tensor(2.0).log())
    (gradient,) = torch.autograd.grad(loss, experts)
    torch.testing.assert_close(gradient, torch.tensor([[[0.0], [1.0]]]))


def test_the_prior_may_have_another_precision() -> None:
    (experts, prior, weight, bias), target = mixture(6, 3, 9, 4, torch.float32), torch.randint(9, (6,))
    wanted = linear_mixture_loss(experts, prior, weight, target, bias)
    for dtype in (torch.float64, torch.bfloat16):
        other = prior.detach().to(dtype).requires_grad_()
        loss = linear_mixture_loss(experts, other, weight, target, bias)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, wanted, rtol=0, atol=0.02)
        loss.backward()
        assert other.grad.dtype == dtype


# Torch's own, when it goes on tracing after the break that a transform makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiles_with_a_transform() -> None:
    torch._dynamo.reset()
    transform = anymax.PLIF(20, 4.0, random_start=True).double()
    (experts, prior, weight, bias), target = mixture(6, 3, 9, 4), torch.randint(9, (6,))

    def loss(experts: Tensor, prior: Tensor) -> Tensor:
        return 3 * linear_mixture_loss(experts + 1, prior, weight, target, bias, transform=transform)

    compiled = torch.compile(loss, backend="aot_eager")
    sources = named(experts, prior, weight, bias, transform.weight)
    assert_same(compiled(experts, prior), loss(experts, prior), sources)


def test_a_prior_that_does_not_fit_is_refused() -> None:
    (experts, prior, weight, bias), target = mixture(6, 3, 9, 4), torch.randint(9, (6,))
    for wrong in (prior[:, :2], prior[:5], prior[..., None], prior[0]):
        came = str(tuple(wrong.shape)).replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(ValueError, match=rf"prior must have one score .* \(6, 3\), got {came}"):
            linear_mixture_loss(experts, wrong, weight, target, bias)
    with pytest.raises(ValueError, match=r"prior must .* got NoneType"):
        linear_mixture_loss(experts, None, weight, target, bias)
    with pytest.raises(TypeError, match=r"prior must be a floating-point tensor, got torch\.int64"):
        linear_mixture_loss(experts, prior.long(), weight, target, bias)
    with pytest.raises(ValueError, match="prior must be on the device of experts, cpu, got meta"):
        linear_mixture_loss(experts, prior.to("meta"), weight, target, bias)


def test_experts_that_do_not_fit_are_refused_by_their_own_name() -> None:
    (experts, prior, weight, bias), target = mixture(6, 3, 9, 4), torch.randint(9, (6,))
    with pytest.raises(ValueError, match=r"experts must be .* \(\.\.\., experts, dimension\), got \(4,\)"):
        linear_mixture_loss(experts[0, 0], prior, weight, target, bias)
    with pytest.raises(ValueError, match=r"experts must be .* got list"):
        linear_mixture_loss([experts], prior, weight, target, bias)
    with pytest.raises(ValueError, match="at least one expert"):
        linear_mixture_loss(experts[:, :0], prior[:, :0], weight, target, bias)
    with pytest.raises(
        ValueError, match=r"experts must end in the dimension of linear_weight, 4, got shape \(6, 3, 2\)"
    ):
        linear_mixture_loss(experts[..., :2], prior, weight, target, bias)
    with pytest.raises(ValueError, match=r"experts must have the shape of target .* \(5, 3, 4\), got \(6, 3, 4\)"):
        linear_mixture_loss(experts, prior, weight, target[:5], bias)
    with pytest.raises(TypeError, match=r"experts must be a floating-point tensor, got torch\.int64"):
        linear_mixture_loss(experts.long(), prior, weight, target, bias)
    with pytest.raises(TypeError, match=r"experts, linear_weight and linear_bias must have one dtype"):
        linear_mixture_loss(experts.float(), prior, weight, target, bias)


def test_label_smoothing_is_not_among_its_options() -> None:
    (experts, prior, weight, bias), target = mixture(6, 3, 9, 4), torch.randint(9, (6,))
    with pytest.raises(TypeError, match="label_smoothing"):
        linear_mixture_loss(experts, prior, weight, target, bias, label_smoothing=0.1)
