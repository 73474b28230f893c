"""Our face of entmax 1.3: its names and signatures, and the cases where it raises or gives NaN and ours works."""

import inspect

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import anymax.compat.entmax as entmax
from tests.each import each

SIGNATURES = {
    "sparsemax": "(X, dim=-1, k=None)",
    "entmax15": "(X, dim=-1, k=None)",
    "sparsemax_bisect": "(X, dim=-1, n_iter=50, ensure_sum_one=True)",
    "entmax_bisect": "(X, alpha=1.5, dim=-1, n_iter=50, ensure_sum_one=True)",
    "normmax_bisect": "(X, alpha=2, dim=-1, n_iter=50)",
    "budget_bisect": "(X, budget=2, dim=-1, n_iter=50)",
    "sparsemax_loss": "(X, target, k=None)",
    "entmax15_loss": "(X, target, k=None)",
    "sparsemax_bisect_loss": "(X, target, n_iter=50)",
    "entmax_bisect_loss": "(X, target, alpha=1.5, n_iter=50)",
    "normmax_bisect_loss": "(X, target, alpha=2, n_iter=50)",
    "Sparsemax": "(dim=-1, k=None)",
    "Entmax15": "(dim=-1, k=None)",
    "SparsemaxBisect": "(dim=-1, n_iter=None)",
    "EntmaxBisect": "(alpha=1.5, dim=-1, n_iter=50)",
    "NormmaxBisect": "(alpha=2, dim=-1, n_iter=50)",
    "BudgetBisect": "(budget=2, dim=-1, n_iter=50)",
    "SparsemaxLoss": "(k=None, ignore_index=-100, reduction='elementwise_mean')",
    "SparsemaxBisectLoss": "(n_iter=50, ignore_index=-100, reduction='elementwise_mean')",
    "Entmax15Loss": "(k=100, ignore_index=-100, reduction='elementwise_mean')",
    "EntmaxBisectLoss": "(alpha=1.5, n_iter=50, ignore_index=-100, reduction='elementwise_mean')",
    "NormmaxBisectLoss": "(alpha=2, n_iter=50, ignore_index=-100, reduction='elementwise_mean')",
}
MAPPINGS = [name for name in SIGNATURES if name.islower() and not name.endswith("_loss")]
ON_SIMPLEX = [name for name in MAPPINGS if name != "budget_bisect"]
LOSSES = [name for name in SIGNATURES if name.endswith("_loss")]
LOSS_MODULES = [name for name in SIGNATURES if name.endswith("Loss")]
HALVES = [torch.float16, torch.bfloat16]
TARGET = torch.tensor([0, 3, 4, 1])


def scores(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def plain_signature(function) -> str:
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


def derivative(alpha: float, step: float, value) -> float:
    return (value(alpha + step) - value(alpha - step)) / (2 * step)


def test_the_names_are_those_of_the_list():
    assert set(entmax.__all__) == set(SIGNATURES)
    assert all(hasattr(entmax, name) for name in entmax.__all__)


@each("name", SIGNATURES)
def test_the_signature_is_that_of_the_list(name):
    assert plain_signature(getattr(entmax, name)) == SIGNATURES[name]


@each("name", [name for name in SIGNATURES if not name.islower()])
def test_a_module_keeps_its_arguments_as_attributes(name):
    module = getattr(entmax, name)()
    for argument in inspect.signature(type(module)).parameters.values():
        assert getattr(module, argument.name) == argument.default
    assert isinstance(module, nn.Module) and not module.state_dict()


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_mapping_returns_one_tensor_like_its_input(name):
    x = scores(3, 4, 5).float()
    probs = getattr(entmax, name)(x)
    assert type(probs) is Tensor and probs.shape == x.shape and probs.dtype == x.dtype


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_function_returns_one_loss_per_row(name):
    losses = getattr(entmax, name)(scores(4, 5), TARGET)
    assert type(losses) is Tensor and losses.shape == (4,) and (losses >= 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_takes_scores_of_any_leading_shape(name):
    loss = getattr(entmax, name)
    x = scores(2, 2, 5)
    torch.testing.assert_close(loss(x, TARGET.view(2, 2)), loss(x.view(4, 5), TARGET).view(2, 2))


@pytest.mark.parametrize("k", [1, 2, 100, None])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_k_has_no_effect(name, k):
    x = scores(6, 9) / 10
    assert torch.equal(getattr(entmax, name)(x, -1, k), getattr(entmax, name)(x))
    target = torch.arange(6)
    assert torch.equal(getattr(entmax, f"{name}_loss")(x, target, k), getattr(entmax, f"{name}_loss")(x, target))


@pytest.mark.parametrize("name", ["sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"])
def test_the_number_of_iterations_has_no_effect(name):
    x = scores(6, 9)
    assert torch.equal(getattr(entmax, name)(x, n_iter=1), getattr(entmax, name)(x))


@pytest.mark.parametrize("name", ["sparsemax_bisect", "entmax_bisect"])
def test_results_sum_to_one_without_ensure_sum_one(name):
    probs = getattr(entmax, name)(scores(6, 9), n_iter=5, ensure_sum_one=False)
    torch.testing.assert_close(probs.sum(-1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("dim", [-2, -3, 0])
def test_k_works_with_every_dimension(name, dim):
    x = scores(4, 5, 3)
    moved = getattr(entmax, name)(x.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(getattr(entmax, name)(x, dim=dim, k=2), moved)


# Those of sparsemax_bisect the peer ignores.
@each("name", [name for name in SIGNATURES if not name.lower().replace("_", "").startswith("sparsemaxbisect")])
def test_a_setting_below_one_is_refused_by_name(name):
    function = getattr(entmax, name)
    setting = next(s for s in ("k", "n_iter") if s in inspect.signature(function).parameters)
    arguments = (scores(4, 5), TARGET)[: SIGNATURES[name].count("X") + SIGNATURES[name].count("target")]
    with pytest.raises(ValueError, match=f"^{setting} must be"):
        function(*arguments, **{setting: 0})


def test_settings_that_the_peer_ignores_may_be_anything():
    x, target = scores(4, 5), TARGET
    for setting in (0, None, "many"):
        assert torch.equal(entmax.sparsemax_bisect(x, n_iter=setting, ensure_sum_one=setting), entmax.sparsemax(x))
        assert torch.equal(entmax.SparsemaxBisect(n_iter=setting)(x), entmax.sparsemax(x))
        assert torch.equal(entmax.sparsemax_bisect_loss(x, target, setting), entmax.sparsemax_loss(x, target))
        assert torch.equal(entmax.entmax_bisect(x, ensure_sum_one=setting), entmax.entmax15(x))


def test_parameters_may_be_lists_and_arrays():
    x = scores(2, 5)
    for name, values in (
        ("entmax_bisect", [0.5, 1.5]),
        ("normmax_bisect", [1.5, 3.0]),
        ("budget_bisect", [-1.0, 2.5]),
    ):
        expected = getattr(entmax, name)(x, torch.tensor(values).view(2, 1))
        for same in (
            [[value] for value in values],
            np.array(values)[:, None],
            torch.tensor(values).double().view(2, 1),
        ):
            torch.testing.assert_close(getattr(entmax, name)(x, same), expected, rtol=0, atol=0)
    torch.testing.assert_close(entmax.entmax_bisect(x, np.float32(0.5)), entmax.entmax_bisect(x, 0.5))


@each("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
def test_alpha_of_a_loss_may_be_an_array(name):
    loss, x = getattr(entmax, name), scores(4, 5)
    assert loss(x, TARGET, np.array(1.5)).equal(loss(x, TARGET, 1.5))
    values = [[1.25], [1.5], [2.0], [3.0]]
    assert loss(x, TARGET, np.array(values)).equal(loss(x, TARGET, torch.tensor(values).double()))


def test_whole_numbers_are_scores_too():
    x, alpha = torch.tensor([[3, 1, 0, 1], [2, 2, -5, 1]]), torch.tensor([[1.5], [3.0]])
    for name in MAPPINGS:
        assert getattr(entmax, name)(x).equal(getattr(entmax, name)(x.float())), name
    for name in LOSSES:
        assert getattr(entmax, name)(x, TARGET[:2]).equal(getattr(entmax, name)(x.float(), TARGET[:2])), name
    assert entmax.entmax_bisect(x, alpha).equal(entmax.entmax_bisect(x.float(), alpha))


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.75, 1.0, 1.2, 2.25])
def test_entmax_has_its_gradients_from_zero_up(alpha):
    x, learned = scores(4, 6).requires_grad_(), torch.tensor(alpha, dtype=torch.float64, requires_grad=alpha > 0)
    assert torch.autograd.gradcheck(entmax.entmax_bisect, (x, learned), eps=1e-5)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_alphas_from_zero_up_may_differ_along_every_other_dimension(dim):
    x, shape = scores(3, 4, 2, 5), [3, 4, 2, 5]
    shape[dim] = 1
    alpha = 0.05 + 2.5 * torch.rand(shape, dtype=torch.float64)
    probs = entmax.entmax_bisect(x, alpha, dim).movedim(dim, -1).reshape(-1, x.shape[dim])
    rows = zip(x.movedim(dim, -1).reshape(probs.shape), alpha.flatten(), strict=True)
    alone = torch.stack([entmax.entmax_bisect(row, a.item()) for row, a in rows])
    torch.testing.assert_close(probs, alone, rtol=1e-12, atol=1e-14)
    leaves = (x.requires_grad_(), alpha.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, a: entmax.entmax_bisect(x, a, dim), leaves, eps=1e-5)


def test_known_answers_of_normmax_and_budgets():
    x = torch.linspace(0, 1, 5)
    for got, expected in (
        (entmax.normmax_bisect(x, 2, 0), [0.0, 0.0239, 0.1746, 0.3254, 0.4761]),
        (entmax.normmax_bisect(x, 1000, 0), [0.0, 0.0, 0.3330, 0.3334, 0.3336]),
        (entmax.budget_bisect(x, 2, 0), [0.0, 0.125, 0.375, 0.625, 0.875]),
        (entmax.budget_bisect(2 * x, 3, 0), [0.0, 0.25, 0.75, 1.0, 1.0]),
    ):
        torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=6e-5)
    for factor in (1, 2, 3, 4, 5):
        torch.testing.assert_close(entmax.budget_bisect(factor * x, 1, 0), entmax.sparsemax(factor * x, 0))


@pytest.mark.parametrize("name", LOSS_MODULES)
def test_a_loss_module_has_its_gradient_and_an_ignored_class_makes_it_smaller(name):
    x = scores(20, 6).requires_grad_()
    target = scores(20, 6, seed=1).argmax(1)
    for reduction in ("sum", "elementwise_mean"):
        for ignore_index in (-100, target[0]):
            module = getattr(entmax, name)(ignore_index=ignore_index, reduction=reduction)
            assert torch.autograd.gradcheck(lambda x, module=module: module(x, target), (x,), eps=1e-5)
    ignoring, counting = (getattr(entmax, name)(ignore_index=i, reduction="sum")(x, target) for i in (target[0], -100))
    assert ignoring < counting


def test_alpha_one_is_softmax():
    x = scores(4, 5)
    torch.testing.assert_close(entmax.entmax_bisect(x, 1.0), x.softmax(-1))
    torch.testing.assert_close(entmax.entmax_bisect(x, torch.ones(4, 1, dtype=torch.float64)), x.softmax(-1))
    torch.testing.assert_close(entmax.EntmaxBisect(alpha=1)(x), x.softmax(-1))


def test_the_loss_at_alpha_one_is_cross_entropy():
    x = scores(4, 5)
    expected = cross_entropy(x, TARGET, reduction="none")
    torch.testing.assert_close(entmax.entmax_bisect_loss(x, TARGET, 1.0), expected)
    torch.testing.assert_close(entmax.EntmaxBisectLoss(alpha=1.0)(x, TARGET), expected.mean())


@pytest.mark.parametrize("alpha", [0.3, 0.999, 1.0, 1.00001, 1.001])
def test_alpha_has_its_true_gradient_at_and_near_one(alpha):
    x, weights = scores(1, 6), scores(1, 6, seed=1)
    expected = derivative(alpha, 1e-4, lambda a: (entmax.entmax_bisect(x, a) * weights).sum().item())
    learned = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad((entmax.entmax_bisect(x, learned) * weights).sum(), learned)
    assert gradient.item() == pytest.approx(expected, abs=1e-5)


def test_a_parameter_given_as_alpha_is_registered_and_learned():
    for module in (
        entmax.EntmaxBisect(nn.Parameter(torch.tensor(1.3))),
        entmax.EntmaxBisectLoss(nn.Parameter(torch.tensor(1.3))),
    ):
        assert [name for name, _ in module.named_parameters()] == ["alpha"]
    module(scores(4, 5).float(), TARGET).backward()
    assert module.alpha.grad.abs() > 0


@pytest.mark.parametrize("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_loss_takes_one_alpha_per_row(name, shape):
    loss = getattr(entmax, name)
    x, alpha = scores(4, 5), torch.tensor([1.2, 1.5, 2.0, 3.0], dtype=torch.float64)
    expected = [loss(x[i : i + 1], TARGET[i : i + 1], alpha[i].item()) for i in range(4)]
    torch.testing.assert_close(loss(x, TARGET, alpha.view(shape)), torch.cat(expected))


@pytest.mark.parametrize("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
def test_a_loss_gives_alpha_its_gradient(name):
    alpha = torch.tensor([[1.2], [1.5], [2.0], [3.0]], dtype=torch.float64, requires_grad=True)
    x = scores(4, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, alpha: getattr(entmax, name)(x, TARGET, alpha), (x, alpha))
    assert torch.autograd.gradgradcheck(lambda x, alpha: getattr(entmax, name)(x, TARGET, alpha), (x, alpha))


@pytest.mark.parametrize("name", ON_SIMPLEX)
def test_a_row_of_minus_infinity_gives_zeros_and_no_gradient(name):
    x = scores(3, 5)
    x[1] = -torch.inf
    x.requires_grad_()
    probs = getattr(entmax, name)(x)
    (gradient,) = torch.autograd.grad((probs * scores(3, 5, seed=1)).sum(), x)
    assert (probs[1] == 0).all() and (gradient[1] == 0).all()
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(probs.detach().sum(-1), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("name", MAPPINGS)
def test_minus_infinity_leaves_an_entry_out(name):
    x = scores(3, 6)
    masked = x.clone()
    masked[:, 4:] = -torch.inf
    probs = getattr(entmax, name)(masked)
    torch.testing.assert_close(probs[:, :4], getattr(entmax, name)(x[:, :4]))
    assert (probs[:, 4:] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_minus_infinity_leaves_a_class_out_of_the_loss(name):
    loss = getattr(entmax, name)
    x = scores(4, 5).requires_grad_()
    outside = torch.full((4, 2), -torch.inf, dtype=torch.float64)
    masked, plain = loss(torch.cat([x, outside], -1), TARGET), loss(x, TARGET)
    torch.testing.assert_close(masked, plain)
    torch.testing.assert_close(torch.autograd.grad(masked.sum(), x), torch.autograd.grad(plain.sum(), x))


@pytest.mark.parametrize("name", ["entmax_bisect", "normmax_bisect", "entmax_bisect_loss", "normmax_bisect_loss"])
def test_minus_infinity_leaves_the_gradient_by_alpha_as_it_is(name):
    x, weights = scores(4, 5), scores(4, 5, seed=1)
    masked = torch.cat([x, torch.full((4, 2), -torch.inf, dtype=torch.float64)], -1)

    def gradient_by_alpha(x: Tensor) -> Tensor:
        alpha = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        if name.endswith("_loss"):
            result = getattr(entmax, name)(x, TARGET, alpha)
        else:
            result = getattr(entmax, name)(x, alpha)[:, :5] * weights
        return torch.autograd.grad(result.sum(), alpha)[0]

    torch.testing.assert_close(gradient_by_alpha(masked), gradient_by_alpha(x))


@pytest.mark.parametrize("name", LOSSES)
def test_a_target_at_minus_infinity_costs_infinity(name):
    x = scores(4, 5)
    x[0, 0] = -torch.inf
    losses = getattr(entmax, name)(x, TARGET)
    assert losses[0] == torch.inf and torch.isfinite(losses[1:]).all()


@each("name", LOSS_MODULES)
@each("ignore_index", [-100, -1, 2])
def test_ignored_rows_cost_nothing_and_do_not_count(name, ignore_index):
    module = getattr(entmax, name)
    x = scores(4, 5).requires_grad_()
    target = torch.tensor([0, ignore_index, 4, ignore_index])
    mean, total, rows = (
        module(ignore_index=ignore_index, reduction=r)(x, target) for r in ("elementwise_mean", "sum", "none")
    )
    kept = module(reduction="none")(x[::2], target[::2])
    torch.testing.assert_close(rows[::2], kept)
    assert (rows[1::2] == 0).all()
    torch.testing.assert_close(total, kept.sum())
    torch.testing.assert_close(mean, kept.mean())
    (gradient,) = torch.autograd.grad(mean, x)
    assert (gradient[1::2] == 0).all() and (gradient[::2] != 0).any()


@each("name", LOSS_MODULES)
@each("reduction", ["elementwise_mean", "sum", "none"])
def test_all_targets_ignored_gives_zero(name, reduction):
    x = scores(4, 5).requires_grad_()
    loss = getattr(entmax, name)(reduction=reduction)(x, torch.full((4,), -100))
    assert (loss == 0).all()
    assert (torch.autograd.grad(loss.sum(), x)[0] == 0).all()


def test_the_ignored_index_may_be_a_tensor():
    loss = entmax.SparsemaxLoss(ignore_index=TARGET[0], reduction="none")(scores(4, 5), TARGET)
    assert (loss == 0).tolist() == [True, False, False, False]


@pytest.mark.parametrize("name", LOSS_MODULES)
def test_an_unknown_reduction_is_refused(name):
    with pytest.raises(ValueError, match=r"^reduction must be one of elementwise_mean, sum, none, got 'mean'"):
        getattr(entmax, name)(reduction="mean")


@pytest.mark.parametrize("target", [torch.rand(4, 5), torch.tensor([0, 1, 2])], ids=["soft", "short"])
def test_a_target_that_is_not_one_class_per_row_is_refused(target):
    with pytest.raises(ValueError, match=r"^target must hold one class index per row"):
        entmax.sparsemax_loss(scores(4, 5), target)


@each("dtype", HALVES)
@each("name", MAPPINGS)
def test_half_precision_is_the_rounded_single_precision(name, dtype):
    x = scores(8, 1000).to(dtype)
    probs = getattr(entmax, name)(x)
    assert probs.dtype == dtype
    assert torch.equal(probs, getattr(entmax, name)(x.float()).to(dtype))


@each("dtype", HALVES)
@each("name", LOSSES)
def test_half_precision_losses_keep_their_type_and_their_digits(name, dtype):
    x = scores(4, 1000).to(dtype).requires_grad_()
    losses = getattr(entmax, name)(x, TARGET)
    assert losses.dtype == dtype
    torch.testing.assert_close(losses.float(), getattr(entmax, name)(x.float(), TARGET), rtol=1e-2, atol=1e-2)
    (gradient,) = torch.autograd.grad(losses.sum(), x)
    assert gradient.dtype == dtype and torch.isfinite(gradient).all()


def test_a_mean_of_many_half_precision_losses_does_not_overflow():
    x = torch.zeros(4000, 4, dtype=torch.float16)
    x[:, 0] = 40
    assert entmax.SparsemaxLoss()(x, torch.ones(4000, dtype=torch.long)) == 40


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_large_offset_changes_nothing(name):
    # Multiples of 1/64, so that adding the offset rounds nothing.
    x = (scores(4, 6) * 64).round() / 64
    function = getattr(entmax, name)
    torch.testing.assert_close(function(x + 2**33), function(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(function(x - 2**33), function(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_large_offset_does_not_change_the_loss(name):
    x = (scores(4, 6) * 64).round() / 64
    function = getattr(entmax, name)
    torch.testing.assert_close(function(x + 2**33, TARGET), function(x, TARGET), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_have_second_derivatives_where_entries_are_zero(name):
    x = 2 * scores(3, 6)
    assert (getattr(entmax, name)(x) == 0).any()
    assert torch.autograd.gradgradcheck(getattr(entmax, name), x.requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_second_derivatives_where_entries_are_zero(name):
    x = 2 * scores(4, 6)
    assert torch.autograd.gradgradcheck(lambda x: getattr(entmax, name)(x, TARGET), x.requires_grad_())


@pytest.fixture
def compiled():
    torch.compiler.reset()
    yield lambda function: torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.compiler.reset()


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_compile_to_one_graph(name, compiled):
    x, weights = scores(4, 5).requires_grad_(), scores(4, 5, seed=1)
    function = getattr(entmax, name)
    eager, graph = function(x), compiled(function)(x)
    torch.testing.assert_close(graph, eager)
    torch.testing.assert_close(
        torch.autograd.grad((graph * weights).sum(), x), torch.autograd.grad((eager * weights).sum(), x)
    )


def test_a_learned_alpha_compiles_to_one_graph(compiled):
    x, alpha = scores(4, 5), torch.tensor([[1.2], [1.5], [2.0], [3.0]], dtype=torch.float64, requires_grad=True)
    for function in (lambda a: entmax.entmax_bisect(x, a)[:, 0], lambda a: entmax.entmax_bisect_loss(x, TARGET, a)):
        eager, graph = function(alpha), compiled(function)(alpha)
        torch.testing.assert_close(graph, eager)
        torch.testing.assert_close(torch.autograd.grad(graph.sum(), alpha), torch.autograd.grad(eager.sum(), alpha))


@pytest.mark.parametrize("name", LOSS_MODULES)
def test_loss_modules_compile_to_one_graph(name, compiled):
    x, module = scores(4, 5).requires_grad_(), getattr(entmax, name)()
    eager, graph = module(x, TARGET), compiled(module)(x, TARGET)
    torch.testing.assert_close(graph, eager)
    torch.testing.assert_close(torch.autograd.grad(graph, x), torch.autograd.grad(eager, x))


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_can_be_mapped_over(name):
    x, weights = scores(3, 4, 5), scores(4, 5, seed=1)
    function = getattr(entmax, name)
    torch.testing.assert_close(torch.vmap(function)(x), function(x))
    gradient = torch.func.grad(lambda x: (function(x) * weights).sum())
    torch.testing.assert_close(torch.vmap(gradient)(x), torch.stack([gradient(row) for row in x]))


@pytest.mark.parametrize("name", MAPPINGS)
def test_gradients_pass_through_a_mapped_mapping(name):
    x, weights, function = scores(3, 4, 5).requires_grad_(), scores(3, 4, 5, seed=1), getattr(entmax, name)
    (expected,) = torch.autograd.grad((function(x) * weights).sum(), x)
    (gradient,) = torch.autograd.grad((torch.vmap(function)(x) * weights).sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_the_budget_has_its_gradient_along_every_dimension():
    x, weights = scores(4, 5, 3).requires_grad_(), scores(4, 5, 3, seed=1)
    for dim in range(3):
        (expected,) = torch.autograd.grad((entmax.budget_bisect(x, 2, dim - 3) * weights).sum(), x)
        (gradient,) = torch.autograd.grad((entmax.BudgetBisect(2, dim)(x) * weights).sum(), x)
        torch.testing.assert_close(gradient, expected)
        assert torch.autograd.gradcheck(lambda x, dim=dim: entmax.budget_bisect(x, 2, dim), x)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_can_be_mapped_over(name):
    x, function = scores(4, 5), getattr(entmax, name)
    torch.testing.assert_close(torch.vmap(function)(x, TARGET), function(x, TARGET))
    per_row = torch.vmap(torch.func.grad(function))(x, TARGET)
    torch.testing.assert_close(per_row, torch.func.grad(lambda x: function(x, TARGET).sum())(x))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_pass_through_a_mapped_loss(name):
    x, function = scores(4, 5).requires_grad_(), getattr(entmax, name)
    (expected,) = torch.autograd.grad(function(x, TARGET).sum(), x)
    (gradient,) = torch.autograd.grad(torch.vmap(function)(x, TARGET).sum(), x)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", LOSS_MODULES)
def test_an_empty_batch_costs_nothing(name):
    for target in (TARGET[:0], torch.tensor([])):
        assert getattr(entmax, name)()(scores(0, 5), target) == 0
